"""Prometheus metrics. Nothing is registered and updated: each scrape renders a snapshot.

What is exported as a counter must never fall, so the counters of consumers and workers that ended are kept and added.

    catalogue   every metric: name, kind, labels, meaning
    exposition  snapshots as series
    totals      snapshots added up over restarts and processes
"""
