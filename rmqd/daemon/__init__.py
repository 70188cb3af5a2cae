"""The daemon `rmqd run`: supervision of groups, HTTP, metrics, worker processes, reload, signals.

A failed group does not affect other groups, and a reload of an invalid configuration changes nothing. Modules that the
start does not need (HTTP, Prometheus) are imported later, so that the first message is handled sooner.
"""
