"""Libraries that only some handlers need. Each comes with an extra, which is named where it is missing."""

from __future__ import annotations

import importlib.util


class ExtraMissingError(ImportError):
    """A library that the handler needs is not installed."""


def need(module: str, extra: str) -> None:
    """Raises ExtraMissingError where `module` cannot be found, with the command that installs it."""
    if importlib.util.find_spec(module) is None:
        raise ExtraMissingError(f"{module} is not installed: pip install 'rmqd-handlers[{extra}]'")
