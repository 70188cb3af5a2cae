"""Handlers that run in worker processes, as the key `handler.processes` configures."""
