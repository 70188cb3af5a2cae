"""Handlers and pipelines that rmqd finds by entry points, listed in the distribution's pyproject.toml."""

__version__ = "0.1.0"
