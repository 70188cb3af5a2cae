"""One message that an operator has a member handle: what the handler gets, and what the operator hears of it."""

from __future__ import annotations

import threading

import pytest

from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.admin.test_direct_consumption import ask, runs
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.usefixtures("hasty")


async def test_a_thread_that_hangs_keeps_its_turn(
    broker: ScriptedBroker, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it comes back: an operator who asks again and again must not make threads without end."""
    monkeypatch.setattr("rmqd.consumer.admin.member_requests.ANSWER_SECONDS", 0.1)
    go_on, calls = threading.Event(), list[Batch]()

    def handle(batch: Batch) -> None:
        calls.append(batch)
        go_on.wait(5)

    async with member(broker.peer.address, handle, is_async=False, concurrency=1) as m:
        await runs(m)
        assert "took longer than" in (await ask(m))[1]
        assert "none finished within 0.1 s" in (await ask(m))[1]
        assert len(calls) == 1
        go_on.set()
        remarks = ["none finished"]
        while "none finished" in remarks[-1]:
            remarks.append((await ask(m))[1])
        assert len(calls) == 2
