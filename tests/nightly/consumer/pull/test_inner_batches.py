"""A topic with queue.type=BatchCQ: each member of a batch is handled and settled separately."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rmqd.codes import RequestCode
from rmqd.handler_api.batch import Batch, DeadLetter
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import BatchMember, StoredMessage, encode_message
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.blocks import corrupted
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.wire.batch_records import batch_of

pytestmark = pytest.mark.usefixtures("hasty")


def members(*bodies: bytes) -> list[BatchMember]:
    return [BatchMember(body, {"TAGS": body[:1].decode(), "UNIQ_KEY": body.decode()}) for body in bodies]


def batch(queue: MessageQueue, base: int, *bodies: bytes) -> bytes:
    return encode_message(batch_of(members(*bodies), base, StoredMessage(topic=queue.topic, body=b"")))


def answer(broker: ScriptedBroker, queue: MessageQueue, *batches: Sequence[bytes]) -> Reply:
    """A pull response with these batches, from offset 0 on."""
    records, base = [], 0
    for bodies in batches:
        records.append(batch(queue, base, *bodies))
        base += len(bodies)
    return broker.found(queue, b"".join(records), base)


async def test_members_are_handled_and_committed(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    broker.answer_pull(queue, answer(broker, queue, [b"a0", b"a1"], [b"a2"]), None)
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05):
        await seen.has(b"a0", b"a1", b"a2")
        await broker.committed(GROUP, queue, 3)


async def test_members_are_filtered_by_their_tags(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """The batch itself has no tags. Members that do not match count as consumed."""
    broker.answer_pull(queue, answer(broker, queue, [b"a0", b"b1", b"a2", b"b3"]), None)
    async with member(
        broker.peer.address, seen, subscriptions={queue.topic: "a"}, persist_consumer_offset_interval_seconds=0.05
    ):
        await seen.has(b"a0", b"a2")
        await broker.committed(GROUP, queue, 4)


async def test_a_batch_may_begin_below_the_pulled_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Its first members are not handled again, and the commit offset does not fall."""
    broker.offsets[GROUP, queue] = 2
    broker.answer_pull(queue, answer(broker, queue, [b"a0", b"a1", b"a2", b"a3"]), None)
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05):
        await seen.has(b"a2", b"a3")
        await broker.committed(GROUP, queue, 4)
    assert min(broker.commits_of(queue)) >= 2


async def test_a_member_is_retried_separately(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """It is sent to the retry topic. A send-back names the batch, and would redeliver all of it."""

    async def fail_one(batch: Batch) -> None:
        if batch[0].body == b"a1":
            raise RuntimeError("not now")

    broker.answer_pull(queue, answer(broker, queue, [b"a0", b"a1", b"a2"]), None)
    async with member(broker.peer.address, fail_one, persist_consumer_offset_interval_seconds=0.05):
        await broker.committed(GROUP, queue, 3)
    [sent] = broker.sent
    assert (sent.header.topic, sent.body, sent.header.sys_flag) == (f"%RETRY%{GROUP}", b"a1", 0)
    assert sent.properties["UNIQ_KEY"] == "a1"
    assert sent.properties["RETRY_TOPIC"] == queue.topic
    assert not broker.sent_back


async def test_a_member_is_dead_lettered_separately(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """Never by a send-back, even if the broker refuses the message at first."""

    async def give_up(batch: Batch) -> None:
        if batch[0].body == b"a1":
            raise DeadLetter("never")

    broker.answer_pull(queue, answer(broker, queue, [b"a0", b"a1", b"a2"]), None)
    broker.peer.on(RequestCode.SEND_MESSAGE_V2, Reply(1, "not yet"))
    async with member(broker.peer.address, give_up, clock=flowing):
        await broker.peer.received(RequestCode.SEND_MESSAGE_V2, 1)
        broker.peer.on(RequestCode.SEND_MESSAGE_V2, broker.send)
        await broker.committed(GROUP, queue, 3)
    [sent] = broker.sent
    assert (sent.header.topic, sent.body) == (f"%DLQ%{GROUP}", b"a1")
    assert not broker.sent_back


async def test_a_corrupt_batch_is_dead_lettered_as_a_whole(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Without its batch properties, because a broker would refuse them in a topic that holds no batches."""
    bad = batch(queue, 0, b"a0", b"a1")
    reply = broker.found(queue, corrupted(bad, b"a1") + batch(queue, 2, b"a2"), 3)
    broker.answer_pull(queue, reply, reply, None)
    async with member(
        broker.peer.address, seen, on_corrupt_message="dead_letter", persist_consumer_offset_interval_seconds=0.05
    ):
        await seen.has(b"a2")
        await broker.committed(GROUP, queue, 3)
    [sent] = broker.sent
    assert b"a0" in sent.body
    assert not {"INNER_NUM", "INNER_BASE"} & set(sent.properties)


async def test_a_corrupt_batch_stops_its_queue_at_the_groups_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Not at the batch's first offset, because the first members were handled before."""
    broker.offsets[GROUP, queue] = 1
    bad = corrupted(batch(queue, 0, b"a0", b"a1"), b"a1")
    broker.answer_pull(queue, *[broker.found(queue, bad, 2)] * 3, None)
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05):
        await broker.peer.received(RequestCode.PULL_MESSAGE, 4)
    assert set(broker.pulled_offsets(queue)) == {1}
    assert set(broker.commits_of(queue)) <= {1}
