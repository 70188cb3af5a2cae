"""The jstack that a member returns to an operator."""

from __future__ import annotations

import asyncio
import re

import pytest

from rmqd.consumer.admin import member_requests as module
from rmqd.consumer.admin.member_requests import stacks_of_tasks_and_threads


async def test_a_long_text_is_truncated_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STACKS_CHARACTERS", 10)
    assert re.fullmatch(r"\d+ more stacks are left out", stacks_of_tasks_and_threads().strip())


async def test_a_deep_stack_is_truncated_with_a_note() -> None:
    async def deeper(depth: int, event: asyncio.Event) -> None:
        await (deeper(depth - 1, event) if depth else event.wait())

    event = asyncio.Event()
    task = asyncio.create_task(deeper(100, event), name="a task deep down")
    await asyncio.sleep(0)
    text = stacks_of_tasks_and_threads()
    event.set()
    await task
    (found,) = (part for part in text.split("\n\n") if "deep down" in part)
    assert found.count("\n") == module.MAX_FRAMES_PER_STACK + 1
    assert re.search(r"and \d+ more$", found)
