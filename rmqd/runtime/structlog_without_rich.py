"""Imports structlog without rich. Import this module before structlog in every main program.

structlog uses rich for tracebacks if it is installed. Importing rich takes as long as the rest of the start.
"""

from __future__ import annotations

import sys

_rich = sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
import structlog  # noqa: E402, F401

if _rich is None:
    del sys.modules["rich"]
