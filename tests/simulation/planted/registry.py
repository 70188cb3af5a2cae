"""The table of all planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]

PLANTED: Final[dict[str, Plant]] = {}


def plant(function: Plant) -> Plant:
    """Have a bug found by its function's name. The function puts it into rmqd; the patch takes it out again."""
    if function.__name__ in PLANTED:
        raise ValueError(f"two planted bugs are called {function.__name__}")
    PLANTED[function.__name__] = function
    return function
