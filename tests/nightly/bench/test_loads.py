"""The programs that store messages for the broker benchmark, on an embedded broker."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench import producer_load, raw_puller, raw_sender
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq

MESSAGES, BODY_BYTES, QUEUES, INFLIGHT = 50, 100, 4, 8


def stored_bodies(rocketmq: EmbeddedRocketMQ) -> list[int]:
    """Return the number of messages of each queue."""
    return [rocketmq.broker.store.max_offset("T", queue_id) for queue_id in range(QUEUES)]


async def test_pre_encoded_frames_are_stored_in_the_queues_in_turn() -> None:
    async with embedded_rocketmq(EmbeddedOptions(topics={"T": QUEUES})) as rocketmq:
        await asyncio.to_thread(send_raw, rocketmq.nameserver, "T")
        assert stored_bodies(rocketmq) == [13, 13, 12, 12]
        found = rocketmq.broker.store.get("T", 3, 0, 32)
        assert all(len(record) > BODY_BYTES for record in found.records)


async def test_a_rejected_message_ends_the_raw_sender() -> None:
    async with embedded_rocketmq(EmbeddedOptions(topics={"T": QUEUES})) as rocketmq:
        with pytest.raises(raw_sender.RawSendError, match="not exist"):
            await asyncio.to_thread(send_raw, rocketmq.nameserver, "none", "TBW103")


async def test_the_rmqd_producer_reports_the_stored_messages() -> None:
    async with embedded_rocketmq(EmbeddedOptions(topics={"T": QUEUES})) as rocketmq:
        line = await producer_load.send(rocketmq.nameserver, "T", MESSAGES, BODY_BYTES, INFLIGHT)
        assert sum(stored_bodies(rocketmq)) == MESSAGES
        assert json.loads(line)["messages"] == MESSAGES - 1  # the first is not timed


def send_raw(nameserver: str, topic: str, default_topic: str = "TBW102") -> None:
    ((address, queues),) = raw_puller.find_queues(nameserver, "T").items()
    frames = [raw_sender.frame(topic, queue, bytes(BODY_BYTES), default_topic) for queue in range(queues)]
    with raw_puller.connect(address) as connection:
        raw_sender.send(connection, frames, MESSAGES, INFLIGHT)
