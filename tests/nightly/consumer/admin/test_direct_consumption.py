"""One message that an operator has a member handle: what the handler gets, and what the operator hears of it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rmqd.codes import ResponseCode
from rmqd.errors import RmqdError
from rmqd.handler_api import Batch
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import encode_message
from tests.consumer.admin.test_direct_consumption import DIRECTLY, FIELDS, MESSAGE, ask, runs
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.usefixtures("hasty")


async def test_a_call_under_way_ends_with_the_group(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """Before the handler is stopped; the connection closes without a fault."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with member(broker.peer.address, handle) as m:
        await runs(m)
        await broker.peer.push(DIRECTLY, FIELDS, encode_message(MESSAGE))
        await begun.wait()
        await m.stop()
        assert ended.is_set()
        with pytest.raises(RmqdError, match="is ending"):
            await m.consumer.on_request(RemotingCommand(DIRECTLY, ext_fields=FIELDS, body=encode_message(MESSAGE)))


async def test_more_than_may_wait_are_refused(
    broker: ScriptedBroker, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a word that lets the operator ask again."""
    monkeypatch.setattr("rmqd.consumer.admin.direct_consumption.MOST_WAITING", 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        begun.set()
        await go_on.wait()

    async with member(broker.peer.address, handle, concurrency=1) as m:
        await runs(m)
        first = asyncio.create_task(ask(m))
        await begun.wait()
        second = asyncio.create_task(ask(m))
        await asyncio.sleep(0)
        code, remark = await ask(m)
        assert code == ResponseCode.SYSTEM_ERROR
        assert "the handler has 1 messages of operators already, and 1 more wait" in remark
        go_on.set()
        assert [await first, await second] == [(ResponseCode.SUCCESS, "")] * 2


async def test_a_thread_that_hangs_keeps_its_turn(
    broker: ScriptedBroker, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it comes back: an operator who asks again and again must not make threads without end."""
    monkeypatch.setattr("rmqd.consumer.admin.direct_consumption.ANSWER_SECONDS", 0.1)
    go_on, calls = threading.Event(), list[Batch]()

    def handle(batch: Batch) -> None:
        calls.append(batch)
        go_on.wait(5)

    async with member(broker.peer.address, handle, is_async=False, concurrency=1) as m:
        await runs(m)
        assert "took longer than" in (await ask(m))[1]
        assert "none was done in 0.1 s" in (await ask(m))[1]
        assert len(calls) == 1
        go_on.set()
        remarks = ["none was done"]
        while "none was done" in remarks[-1]:
            remarks.append((await ask(m))[1])
        assert len(calls) == 2
