"""Handlers that rmqd finds by entry point: log, jsonl and exec."""

__version__ = "0.1.0"
