"""Imports structlog without rich and greenlet. Import this module before structlog in every main program.

structlog imports both packages if they are installed. Importing rich takes as long as the rest of the start, and
greenlet needs 1 MB of memory, for thread-local values that rmqd does not use.
"""

from __future__ import annotations

import sys

_hidden = [name for name in ("greenlet", "rich") if sys.modules.setdefault(name, None) is None]  # type: ignore[arg-type]
import structlog  # noqa: E402, F401

for _name in _hidden:
    del sys.modules[_name]
