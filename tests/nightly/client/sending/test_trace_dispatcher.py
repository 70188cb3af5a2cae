"""The way of trace records to the trace topic: in batches, and nobody ever waits for it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from structlog.testing import LogCapture

from rmqd.client.sending import trace_dispatcher
from tests.client.running import running
from tests.client.sending.test_trace_dispatcher import SEND, World, few_looks, logged, told, world

__all__ = ["few_looks", "logged", "world"]


async def test_handlers_threads_may_append(world: World) -> None:
    threads = [threading.Thread(target=world.append, args=range(at, at + 50)) for at in range(0, 400, 50)]
    async with running(world.dispatcher.run()):
        for thread in threads:
            thread.start()
        await world.counted(sent=400)
    assert {key for keys in world.sent() for key in keys.split()} == {f"id{number}" for number in range(400)}
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("few_looks")
async def test_a_topic_that_is_not_there_is_asked_for_seldom_and_told_once_a_minute(
    world: World, logged: LogCapture
) -> None:
    world.has_topic = False
    async with running(world.dispatcher.run()):
        world.append(*range(200))
        await world.clock.until(lambda: world.dispatcher.counts["failed"], "the first senders fail")
        assert world.dispatcher.counts["failed"] <= 10 * trace_dispatcher.SENDERS
        [first] = told(logged)
        assert "does not exist" in str(first["reason"])
        await world.clock.advance(60)
        assert len(told(logged)) == 2, "what was lost since is told a minute later"
        assert sum(int(str(line["records"])) for line in told(logged)) <= world.dispatcher.counts["failed"]
        world.has_topic = True
        await world.clock.until(lambda: world.dispatcher.counts["sent"], "it is sent once the topic is there")
        await world.clock.until(lambda: sum(world.dispatcher.counts.values()) == 200, "each record counts once")


async def test_what_was_under_way_at_the_end_counts_as_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_dispatcher, "MAX_WAITING_CHARACTERS", 9000)
    world.peer.on(SEND, None)
    async with running(world.dispatcher.run()):
        world.append(*range(12), size=700)
        await world.clock.until(lambda: world.peer.got(SEND), "it is sent")
    assert not world.dispatcher.is_full
    world.append(12, size=700)
    assert world.dispatcher.is_full


async def test_the_end_waits_for_nobody_for_long(world: World, logged: LogCapture) -> None:
    world.peer.on(SEND, None)
    world.append(*range(12))
    closing = asyncio.create_task(world.dispatcher.close())
    await world.clock.advance(trace_dispatcher.CLOSE_SECONDS)
    assert closing.done()
    assert world.dispatcher.counts == {"sent": 0, "full": 0, "failed": 12}
    assert sum(int(str(line["records"])) for line in told(logged)) == 12
