"""Read-only queries of a cluster."""
