"""Prometheus metrics. Metrics are not registered and updated: each scrape renders a snapshot.

The metrics are declared at the fields of the snapshots (`runtime.figures`).
"""
