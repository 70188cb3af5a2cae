"""Prometheus metrics. Code does not update metric objects: each scrape renders a snapshot.

The fields of the snapshot classes declare the metrics (`runtime.figures`).
"""
