"""The workers of a group, with messages that no broker accepts for a retry."""

from __future__ import annotations

from collections import Counter

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api.batch import Batch
from tests.client.peer import Reply
from tests.consumer.pool import StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually


async def test_messages_that_no_broker_accepts_are_retried_locally(
    pool: StartPool, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause. Until then the offset stays below them."""
    monkeypatch.setattr("rmqd.consumer.handling.settlement.LOCAL_RETRY_SECONDS", 0.1)
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        broker.peer.on(code, Reply(ResponseCode.SYSTEM_ERROR, "disk full"))
    tries = Counter[int]()

    async def handle(batch: Batch) -> None:
        offset = batch[0].queue_offset
        tries[offset] += 1
        if offset == 1 and tries[offset] < 3:
            raise RuntimeError("failed")

    async with pool(handle, concurrency=2) as running:
        queue = running.queue(3)
        await eventually(lambda: queue.retrying == 1, "the message waits for its next attempt")
        assert queue.commit_offset() == 1
        await eventually(done(queue), "all are handled")
    assert tries == {0: 1, 1: 3, 2: 1}
    assert queue.commit_offset() == 3
    assert handled(queue) == {"acked": 3}
