"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
POLL_SECONDS = 0.05


def wait_until(question: Callable[[], Value], what: str, timeout_seconds: float = 25) -> Value:
    """Ask until the answer is true, and return it; AssertionError with the last answer after `timeout_seconds`."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_seconds:g} s: {what} (last: {answer!r})")
        time.sleep(POLL_SECONDS)
