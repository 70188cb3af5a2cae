"""The stacks in the response to a jstack request."""

from __future__ import annotations

import asyncio
import re
import threading

from rmqd.consumer.admin.member_requests import stacks_of_tasks_and_threads


async def waits_at_the_bottom(event: asyncio.Event) -> None:
    await event.wait()


async def waits(event: asyncio.Event) -> None:
    await waits_at_the_bottom(event)


async def test_each_task_shows_where_it_waits_and_equal_tasks_are_grouped() -> None:
    event = asyncio.Event()
    tasks = [asyncio.create_task(waits(event), name=f"waiting:{number}") for number in range(3)]
    await asyncio.sleep(0)
    text = stacks_of_tasks_and_threads()
    event.set()
    await asyncio.gather(*tasks)
    (found,) = (part for part in text.split("\n\n") if "waiting:0" in part)
    assert re.match(r"3 of \d+ tasks: waiting:0, waiting:1, waiting:2\n", found)
    places = re.findall(r"at (\w+) \(.*test_stacks\.py:\d+\)", found)
    assert places == ["waits_at_the_bottom", "waits"]


async def test_threads_show_their_stacks() -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, name="a handler's")
    thread.start()
    text = stacks_of_tasks_and_threads()
    go_on.set()
    thread.join()
    (found,) = (part for part in text.split("\n\n") if "a handler's" in part)
    assert "Event.wait" in found
    assert "MainThread" in text
