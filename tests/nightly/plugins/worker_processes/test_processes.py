"""Worker processes: dependencies, middleware, revoked locks, and open calls in each process.

The core of these tests is in tests/plugins/worker_processes/test_processes.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmqd.consumer.handling.handler_threads import UnusableHandlerError
from rmqd.handler_api.batch import AlreadyHandled, OrderlyBatch
from rmqd.testing import make_batch, make_message
from tests.plugins.worker_processes.pools import pooled
from tests.plugins.worker_processes.scene import scene
from tests.plugins.worker_processes.scripted_handler import (
    BADLY_GATHERING,
    GATHERING,
    MIDDLEWARE,
    NOTING,
    OPENED,
    SYNC,
    notes,
)
from tests.plugins.worker_processes.test_processes import noted
from tests.waiting import eventually

__all__ = ["noted"]


pytestmark = pytest.mark.process


async def test_dependencies_are_opened_once_in_each_process(noted: Path) -> None:
    async with pooled(OPENED, processes=2) as handler:
        for number in range(4):
            batches = [make_batch(make_message('{"line": ""}', keys=f"{number}-{side}")) for side in range(2)]
            await asyncio.gather(*map(handler.handle, batches))
    seen = notes(noted)
    assert len([one for one in seen if one[0] == "opened"]) == 2
    assert sorted(key for event, key, _ in seen if event == "open") == sorted(
        f"{n}-{s}" for n in range(4) for s in "01"
    )
    assert {pid for _, _, pid in seen} == {pid for event, _, pid in seen if event == "opened"}


async def test_middleware_runs_in_the_worker_process(noted: Path) -> None:
    async with pooled(NOTING, handler={"middleware": [MIDDLEWARE]}) as handler:
        await handler.handle(make_batch(make_message("pass", keys="a")))
    seen = notes(noted)
    assert [event for event, _, _ in seen] == ["start", "before", "begin", "end", "after", "stop"]
    assert len({pid for _, _, pid in seen}) == 1


async def test_a_running_handler_sees_that_its_lock_is_lost() -> None:
    class Lease:
        valid = True

    lease, message = Lease(), make_message("import time\nwhile not batch.revoked: time.sleep(0.01)")
    async with pooled(SYNC) as handler:
        calling = asyncio.ensure_future(handler.handle(OrderlyBatch(lease, [message], message.message_queue)))
        await asyncio.sleep(0)
        lease.valid = False
        async with asyncio.timeout(60):
            await calling


async def test_once_records_are_shared_by_all_processes(tmp_path: Path) -> None:
    line = f"""
from sqlalchemy import create_engine
with create_engine('sqlite:///{tmp_path}/marks').begin() as connection:
    with message.once(connection):
        pass
"""
    message = make_message(line)
    async with pooled(SYNC, processes=2) as handler:
        await handler.handle(make_batch(message))
        with pytest.raises(AlreadyHandled) as raised:
            await handler.handle(make_batch(message))
        assert raised.value.message is message


@pytest.mark.parametrize("processes", [1, 2])
async def test_end_calls_ends_open_calls_in_each_process(noted: Path, processes: int) -> None:
    async with pooled(GATHERING, processes=processes) as handler:
        assert handler.end_calls is not None
        for number in (1, 2):
            batches = [make_batch(make_message("", keys=f"{number}-{side}")) for side in range(processes)]
            calling = [asyncio.ensure_future(handler.handle(batch)) for batch in batches]
            are_open = number * processes
            await eventually(lambda: len(events("begin", noted)) == are_open, "they are open", 60)  # noqa: B023
            handler.end_calls()
            async with asyncio.timeout(60):
                await asyncio.gather(*calling)
        handler.end_calls()  # without open calls
    assert len(events("end_calls", noted)) == len(events("end", noted)) == 2 * processes


def events(event: str, noted: Path) -> list[str]:
    return [key for what, key, _ in notes(noted) if what == event]


async def test_a_handler_without_end_calls_keeps_no_calls_open() -> None:
    """A call that hangs can then be reported as stalling its queue."""
    async with pooled(SYNC) as handler:
        assert handler.end_calls is None


async def test_a_failed_end_calls_fails_the_group_and_counts_no_attempt(noted: Path) -> None:
    async with pooled(BADLY_GATHERING) as handler:
        assert handler.end_calls is not None
        batch = make_batch(make_message("", keys="a"))
        calling = asyncio.ensure_future(handler.handle(batch))
        await eventually(lambda: events("begin", noted) == ["a"], "it is open", 60)
        handler.end_calls()
        async with asyncio.timeout(60):
            with pytest.raises(UnusableHandlerError, match="the handler's end_calls raised RuntimeError: no file"):
                await calling
        assert not batch.decisions()
        assert handler.processes is not None
        assert sum(handler.processes.lost.values()) == 0


async def test_a_group_ends_open_calls_once_all_processes_are_busy(tmp_path: Path) -> None:
    async with scene(tmp_path, handler={"plugin": GATHERING, "processes": 1}) as one:
        for key in ("a", "b"):
            await one.send(key, queue=0)
        await eventually(lambda: one.keys() == ["a", "b"], "both are handled", 60)


async def test_a_message_has_its_consume_start_timestamp() -> None:
    asked = "assert message.consume_start_timestamp >= message.store_timestamp and message.max_offset == 7"
    async with pooled(SYNC) as handler:
        assert handler.ready is not None
        await handler.ready()
        await handler.handle(make_batch(make_message(asked, max_offset=7)))
