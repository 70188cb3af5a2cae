"""Compressed bodies: how much of a response is accepted at a time, and the size limit of a body."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import CompressionType
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.wire.compressing import compress, compressed_flag

pytestmark = pytest.mark.usefixtures("hasty")

MIB = 1 << 20
KINDS = pytest.mark.parametrize("kind", CompressionType)


class Sizes:
    """A handler that records the sizes of bodies."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def __call__(self, batch: Batch) -> None:
        self.sizes += [len(message.body) for message in batch]


async def store(broker: ScriptedBroker, queue: MessageQueue, kind: CompressionType | None, *sizes: int) -> None:
    bodies = [bytes(size) if kind is None else compress(bytes(size), kind) for size in sizes]
    await broker.store(queue, *bodies, sys_flag=0 if kind is None else compressed_flag(kind))


@KINDS
async def test_a_response_is_accepted_up_to_the_size_threshold(
    broker: ScriptedBroker, queue: MessageQueue, kind: CompressionType
) -> None:
    """Decompressed sizes count, and one body may exceed the threshold. The rest is pulled again later."""
    seen = Sizes()
    await store(broker, queue, kind, *[2 * MIB] * 10)
    options: dict[str, Any] = {
        "pull_threshold_size_for_queue_bytes": 5 * MIB,
        "persist_consumer_offset_interval_seconds": 0.05,
    }
    async with member(broker.peer.address, seen, **options):
        await broker.committed(GROUP, queue, 10)
    assert seen.sizes == [2 * MIB] * 10
    starts = broker.pulled_offsets(queue)
    assert starts[:4] == [0, 3, 6, 9]


@pytest.mark.parametrize("kind", [*CompressionType, None])
async def test_a_body_above_max_body_size_is_corrupt(
    broker: ScriptedBroker, queue: MessageQueue, kind: CompressionType | None
) -> None:
    seen = Sizes()
    await store(broker, queue, kind, 3 * MIB, 3 * MIB + 1, 10)
    options: dict[str, Any] = {"max_body_size_bytes": 3 * MIB, "on_corrupt_message": "skip"}
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05, **options) as m:
            await broker.committed(GROUP, queue, 3)
            assert m.topic().handled["corrupt"] == 1
    assert sorted(seen.sizes) == [10, 3 * MIB]
    [entry] = [entry for entry in logs if entry["event"] == "message.corrupt"]
    assert (entry["offset"], entry["reason"]) == (1, f"the body has more than {3 * MIB} bytes (max_body_size)")
