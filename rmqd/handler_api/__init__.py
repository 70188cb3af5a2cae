"""The API for authors of handlers: batches and decisions, typed handlers, transactions with `once`, leases."""
