"""Prometheus metrics. Metrics are not registered and updated: each scrape renders a snapshot.

An exported counter must never decrease, so the counters of ended consumers and workers are kept and added.
"""
