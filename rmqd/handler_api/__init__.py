"""The handler author's side: batches and decisions, typed handlers, transactions with `once`, leases."""
