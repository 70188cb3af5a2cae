"""What waiting gives, and what it says when it was in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.waiting import eventually, wait_until


def at_the_third_time() -> Callable[[], str]:
    """A question with a false answer at first."""
    answers = iter(("", "", "yes"))
    return lambda: next(answers)


async def test_the_first_true_answer_is_returned() -> None:
    question = at_the_third_time()

    async def asked() -> str:
        await asyncio.sleep(0)
        return question()

    assert await eventually(asked, "it is") == "yes"
    assert await eventually(at_the_third_time(), "it is") == wait_until(at_the_third_time(), "it is") == "yes"


async def test_what_was_waited_for_in_vain_is_told_with_the_last_answer() -> None:
    def no() -> list[Any]:
        return []

    with pytest.raises(AssertionError, match=r"^not within 0.01 s: it is there \(last: \[\]\)$"):
        await eventually(no, "it is there", 0.01)
    with pytest.raises(AssertionError, match=r"^not within 0.01 s: it is there \(last: \[\]\)$"):
        wait_until(no, "it is there", 0.01)
    with pytest.raises(AssertionError, match=r"^not within 0.01 s: it ends"):
        await eventually(asyncio.Event().wait, "it ends", 0.01)
