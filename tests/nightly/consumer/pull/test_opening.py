"""Bodies that are compressed: how much of a reply is taken at a time, and what is too large."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import CompressionType
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.consumer.pull.test_opening import KINDS, MIB, Sizes, store
from tests.consumer.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.mark.slow
@KINDS
async def test_many_bodies_that_are_too_large_cost_one_more_pull(
    broker: ScriptedBroker, queue: MessageQueue, kind: CompressionType
) -> None:
    """And not one for each: what was opened before would be opened again for each of them."""
    seen = Sizes()
    await store(broker, queue, kind, *[10, *[MIB + 1] * 20, 20, *[MIB + 1] * 9, 30])
    options: dict[str, Any] = {"max_body_size_bytes": MIB, "on_corrupt_message": "skip"}
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05, **options) as m:
        await broker.committed(GROUP, queue, 32)
        assert m.topic().handled["corrupt"] == 29
        assert m.client.snapshot().doubted_replies == 1
    assert sorted(seen.sizes) == [10, 20, 30]
    assert broker.pulled_offsets(queue)[:3] == [0, 1, 32]
