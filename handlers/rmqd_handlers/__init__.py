"""Handlers that rmqd finds by entry point: log, jsonl and exec; and pipelines: archive and per_minute."""

__version__ = "0.1.0"
