"""Queries of a cluster: topics, groups, messages, and the snapshots of the diagnosis."""
