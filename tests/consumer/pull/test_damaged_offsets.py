"""Contradictory offsets in pull responses, which must not lose messages."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import ResponseCode
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

NOT_FOUND, RETRY_IMMEDIATELY = ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY
OFTEN: dict[str, Any] = {"persist_consumer_offset_interval_seconds": 0.05}

pytestmark = pytest.mark.usefixtures("hasty")


def bodies(low: int, high: int) -> list[bytes]:
    """The bodies of the messages at these offsets."""
    return [b"m%d" % number for number in range(low, high)]


@pytest.mark.parametrize("next_offset", [72, 0, 31, 2**62])
async def test_a_wrong_next_offset_loses_no_message(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, next_offset: int
) -> None:
    """Above or below the end of the records, within the queue or beyond its end."""
    await broker.store(queue, *bodies(0, 100))
    broker.answer_pull(queue, broker.found(queue, broker.records(queue, 0, 32), next_offset))
    async with member(broker.peer.address, seen, concurrency=1, **OFTEN):
        await seen.has(*bodies(0, 100))
        await broker.committed(GROUP, queue, 100)


@pytest.mark.parametrize("code", [NOT_FOUND, RETRY_IMMEDIATELY])
async def test_a_next_offset_beyond_the_queues_end_is_never_committed(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, code: ResponseCode
) -> None:
    """If the broker repeats it, the queue is reported as stuck, and continues once responses are valid."""
    await broker.store(queue, b"0", b"1")
    broker.answer_pull(queue, broker.found(queue, broker.records(queue), 2))
    broker.answer_pull(queue, *[broker.nothing(queue, code, 2**63 - 1)] * 10_000)
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, **OFTEN) as m:
            await broker.committed(GROUP, queue, 2)
            await eventually(lambda: (q := m.queue()) and q.state == "stuck", "it is stuck")
            assert set(broker.pulled_offsets(queue)) == {0, 2}
            broker.forget_answers(queue)
            await broker.store(queue, b"2")
            await seen.has(b"0", b"1", b"2")
            await broker.committed(GROUP, queue, 3)
            await eventually(lambda: (q := m.queue()) and q.state == "waiting", "it is not stuck any more")
    told = [entry["error"] for entry in logs if entry["event"] == "pull.failed"]
    assert f"its next offset {2**63 - 1} is beyond the queue's end at 2" in told[0]
