"""Handlers in separate processes: `handler.processes`."""
