"""Handlers in processes of their own: `handler.processes`."""
