"""Handlers and pipelines that rmqd finds by entry point. The distribution's pyproject.toml lists them."""

__version__ = "0.2.0"
