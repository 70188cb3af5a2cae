"""Waiting for something that another process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], timeout_seconds: float = 30) -> None:
    """Return as soon as the condition holds; fails the test where it does not within the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_seconds} s"
        time.sleep(0.01)
