"""The process: configuration, supervision of the groups, signals, health, metrics and logs."""

from __future__ import annotations

import sys

# structlog prefers rich for tracebacks where it is installed, and its import takes as long as all the rest of ours. So
# structlog is imported first here, whichever module of the process comes first, and finds no rich.
_rich = sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
import structlog  # noqa: E402, F401

if _rich is None:
    del sys.modules["rich"]
