"""Imports structlog so that it finds no rich: to be imported before structlog, wherever a process may begin.

structlog prefers rich for tracebacks where it is installed, and its import takes as long as all the rest of a start.
"""

from __future__ import annotations

import sys

_rich = sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
import structlog  # noqa: E402, F401

if _rich is None:
    del sys.modules["rich"]
