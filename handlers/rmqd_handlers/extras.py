"""Libraries that only some handlers need. Each is installed with an extra, which the error names."""

from __future__ import annotations

import importlib.util


class ExtraMissingError(ImportError):
    """A library that the handler needs is missing."""


def need(module: str, extra: str) -> None:
    """Raise ExtraMissingError with the command to install it if `module` is missing."""
    if importlib.util.find_spec(module) is None:
        raise ExtraMissingError(f"{module} is not installed; run pip install 'rmqd-handlers[{extra}]'")
