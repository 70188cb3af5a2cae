"""A member in POP mode at a scripted broker: its requests, and its reactions to rare answers."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import StaticTopicNotPoppedError
from rmqd.handler_api.batch import Batch, DeadLetter
from rmqd.wire.bodies.pop_bodies import (
    BatchAckMessageRequestBody,
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from rmqd.wire.bodies.route_data import TopicQueueMappingInfo
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.receipt_handle import PopHandle
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.blocks import corrupted
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("unpaced")

INVISIBLE_MS = 60_000
PLACE = MessageQueue(TOPIC, BROKER, -1)


class PopBroker:
    """The answers of a broker whose group pops. `pops` are the next answers to pops; later pops are held."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.address = broker.peer.address
        self.peer = broker.peer
        self.pops: deque[Reply] = deque()
        self.changes: list[PopHandle] = []  # the handles of changed messages, in order
        self.change_answer: Callable[[], Reply] | None = None
        broker.create_topic(TOPIC, 2)
        broker.peer.on(RequestCode.QUERY_ASSIGNMENT, self._assign)
        broker.peer.on(RequestCode.POP_MESSAGE, self._pop)
        broker.peer.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self._change)

    def add(
        self,
        *offsets: int,
        queue_id: int = 0,
        bodies: bytes = b"x",
        record: bytes = b"",
        pop_time: float = 1.0,
        invisible_ms: int = INVISIBLE_MS,
    ) -> None:
        """Return these messages of one queue at the next pop; `pop_time` is by the broker's clock."""
        records = record or b"".join(
            encode_message(StoredMessage(topic=TOPIC, queue_id=queue_id, queue_offset=offset, body=bodies))
            for offset in offsets
        )
        fields = {"popTime": str(round(pop_time * 1000)), "invisibleTime": str(invisible_ms)}
        fields |= {"reviveQid": "3", "restNum": "0"}
        fields["startOffsetInfo"] = f"0 {queue_id} {offsets[0]}"
        fields["msgOffsetInfo"] = f"0 {queue_id} {','.join(map(str, offsets))}"
        self.pops.append(Reply(ext_fields=fields, body=records))

    def acked(self) -> list[tuple[int, int, int]]:
        """(queue, start offset of the handle, offset) of each message that was acknowledged in a batch."""
        bodies = [BatchAckMessageRequestBody.from_json(c.body) for c in self.peer.got(RequestCode.BATCH_ACK_MESSAGE)]
        return [
            (ack.queue_id, ack.start_offset, offset) for body in bodies for ack in body.acks for offset in ack.offsets
        ]

    def _assign(self, command: RemotingCommand) -> Reply:
        asked = QueryAssignmentRequestBody.from_json(command.body)
        if asked.topic != TOPIC:
            told = [MessageQueueAssignment(MessageQueue(asked.topic, BROKER, 0))]
        else:
            told = [MessageQueueAssignment(PLACE, MessageRequestMode.POP)]
        return Reply(body=QueryAssignmentResponseBody(tuple(told)).to_json())

    async def _pop(self, command: RemotingCommand) -> Reply | None:
        if not int(command.ext_fields["pollTime"]):
            return self.pops.popleft() if self.pops else Reply(ResponseCode.POLLING_TIMEOUT)
        while not self.pops:  # noqa: ASYNC110 - tests put them there whenever they like
            await asyncio.sleep(0.01)
        return self.pops.popleft()

    def _change(self, command: RemotingCommand) -> Reply:
        self.changes.append(PopHandle.parse(command.ext_fields["extraInfo"]))
        if self.change_answer is not None:
            return self.change_answer()
        invisible = command.ext_fields["invisibleTime"]
        return Reply(ext_fields={"popTime": "2000", "invisibleTime": invisible, "reviveQid": "5"})


@pytest.fixture
def pop(broker: ScriptedBroker) -> PopBroker:
    """A broker whose group pops all of its queues."""
    return PopBroker(broker)


def popping(one: Member) -> bool:
    return one.queue(-1) is not None


async def test_a_pop_request_has_the_options_of_the_group(pop: PopBroker, seen: Seen) -> None:
    async with member(
        pop.address, seen, consume_mode="pop", subscriptions={TOPIC: "a || b"}, pop_batch_nums=7,
        pop_invisible_time_seconds=5.0, consume_from_where="last_offset",
    ):  # fmt: skip
        [asked, *_] = await pop.peer.received(RequestCode.POP_MESSAGE)
    fields = asked.ext_fields
    assert (fields["topic"], fields["queueId"], fields["consumerGroup"]) == (TOPIC, "-1", GROUP)
    assert (fields["maxMsgNums"], fields["invisibleTime"], fields["pollTime"]) == ("7", "5000", "15000")
    assert (fields["initMode"], fields["exp"], fields["expType"], fields["order"]) == ("0", "a || b", "TAG", "false")
    assert fields["bornTime"] == "0"  # the broker's own clock


async def test_a_static_topic_is_refused_by_name(pop: PopBroker, broker: ScriptedBroker, seen: Seen) -> None:
    """Brokers pop its queues by physical number, even if the queues have moved to other brokers."""
    broker.lead(TOPIC, TopicQueueMappingInfo(BROKER, 1, 1, curr_id_map={0: 0}))
    with pytest.raises(ExceptionGroup) as raised:
        async with member(pop.address, seen, consume_mode="pop") as one:
            await asyncio.wait((one.task,))
    error = raised.value.exceptions[0]
    assert isinstance(error, StaticTopicNotPoppedError)
    assert f"{TOPIC} is a static topic" in str(error)
    assert one.consumer.snapshot().state == "failed"
    assert not pop.peer.got(RequestCode.POP_MESSAGE)


async def test_messages_of_several_queues_are_handed_out_and_acknowledged_by_queue(pop: PopBroker) -> None:
    queues: list[tuple[MessageQueue, int]] = []

    async def handle(batch: Batch) -> None:
        queues.append((batch.message_queue, len(batch)))

    records = b"".join(
        encode_message(StoredMessage(topic=TOPIC, queue_id=queue_id, queue_offset=offset, body=b"x"))
        for queue_id, offset in ((0, 4), (0, 6), (1, 9))
    )
    pop.add(4, 6, 9, record=records)
    first = pop.pops[0]
    pop.pops[0] = Reply(ext_fields={**first.ext_fields, "startOffsetInfo": "0 0 3;0 1 9"}, body=first.body)
    async with member(pop.address, handle, consume_mode="pop", consume_message_batch_max_size=10):
        await eventually(lambda: len(pop.acked()) == 3, "all are acknowledged")
    assert queues == [(MessageQueue(TOPIC, BROKER, 0), 2), (MessageQueue(TOPIC, BROKER, 1), 1)]
    assert sorted(pop.acked()) == [(0, 3, 4), (0, 3, 6), (1, 9, 9)]


async def test_messages_are_acknowledged_singly_if_the_broker_has_no_batch_ack(pop: PopBroker, seen: Seen) -> None:
    pop.peer.on(RequestCode.BATCH_ACK_MESSAGE, Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported"))
    pop.add(4, 6)
    async with member(pop.address, seen, consume_mode="pop"):
        asked = await pop.peer.received(RequestCode.ACK_MESSAGE, 2)
        pop.add(7)
        asked = await pop.peer.received(RequestCode.ACK_MESSAGE, 3)
    assert len(pop.peer.got(RequestCode.BATCH_ACK_MESSAGE)) == 1
    assert [command.ext_fields["offset"] for command in asked] == ["4", "6", "7"]
    assert asked[0].ext_fields["extraInfo"] == f"4 1000 {INVISIBLE_MS} 3 0 {BROKER} 0 4"
    assert asked[0].ext_fields["topic"] == TOPIC


async def test_failed_acknowledgements_are_sent_again(pop: PopBroker, seen: Seen, flowing: ManualClock) -> None:
    answers = deque([Reply(ResponseCode.SYSTEM_BUSY, "later")])
    pop.peer.on(RequestCode.BATCH_ACK_MESSAGE, lambda _: answers.popleft() if answers else Reply())
    pop.add(4)
    async with member(pop.address, seen, clock=flowing, consume_mode="pop") as one:
        await pop.peer.received(RequestCode.BATCH_ACK_MESSAGE, 2)
        assert not one.topic().duplicates
    assert pop.acked() == [(0, 4, 4)] * 2


async def test_a_message_with_an_extended_invisible_time_is_acked_by_its_new_handle(
    pop: PopBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the new handle is still awaited, the acknowledgement waits for it, because the old one becomes invalid."""
    monkeypatch.setattr("rmqd.consumer.pop.pop_assignment.ACK_INTERVAL_SECONDS", 0.01)
    handler = Blocked()
    pop.add(4, 6, invisible_ms=200)
    async with member(pop.address, handler, consume_mode="pop"):
        await eventually(lambda: len(pop.changes) >= 2, "both invisible times are extended")
        handler.release.set()
        await eventually(lambda: len(pop.acked()) == 2, "both are acknowledged")
    assert [(handle.start_offset, handle.queue_offset) for handle in pop.changes[:2]] == [(4, 4), (4, 6)]
    assert sorted(pop.acked()) == [(0, 4, 4), (0, 6, 6)]
    [body] = [json.loads(c.body) for c in pop.peer.got(RequestCode.BATCH_ACK_MESSAGE)]
    assert {(ack["pt"], ack["rq"]) for ack in body["acks"]} == {(2000, 5)}


async def test_messages_received_after_their_invisible_time_are_skipped(pop: PopBroker, flowing: ManualClock) -> None:
    """The invisible time begins at the pop; the network may be slow, or this process was suspended."""
    seen = Seen()
    with capture_logs() as logs:
        async with member(pop.address, seen, consume_mode="pop", clock=flowing) as one:
            pop.add(4, bodies=b"first", pop_time=flowing.wall())
            await seen.has(b"first")
            await pop.peer.received(RequestCode.POP_MESSAGE, 2)
            pop_time = flowing.wall()
            await flowing.sleep(8)
            pop.add(5, bodies=b"late", pop_time=pop_time, invisible_ms=5000)
            await pop.peer.received(RequestCode.POP_MESSAGE, 3)
            pop.add(6, bodies=b"last", pop_time=flowing.wall(), invisible_ms=5000)
            await seen.has(b"first", b"last")
            await eventually(lambda: len(pop.acked()) == 2, "both are acknowledged")
            assert one.topic().received == 2
    assert [offset for _, _, offset in pop.acked()] == [4, 6]
    assert [entry["messages"] for entry in logs if entry["event"] == "pop.came_late"] == [1]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_result_after_the_invisible_time_is_discarded_and_counted(
    pop: PopBroker, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """The broker did not extend the time, so the message is visible to other members by then."""
    monkeypatch.setattr("rmqd.consumer.pop.pop_assignment.ACK_INTERVAL_SECONDS", 0.01)
    pop.change_answer = lambda: Reply(ResponseCode.SYSTEM_ERROR, "cannot")

    async def slow(batch: Batch) -> None:
        await asyncio.sleep(0.2)
        if fails:
            raise DeadLetter("of no use")

    pop.add(4, invisible_ms=100)
    async with member(pop.address, slow, consume_mode="pop") as one:
        await eventually(lambda: one.topic().duplicates == {"invisible_time": 1}, "it is counted")
        assert one.topic().handled["dead_lettered"] == 0
    assert pop.acked() == []
    assert pop.peer.got(RequestCode.SEND_MESSAGE_V2) == []


async def test_unhandled_messages_become_visible_when_the_member_leaves(pop: PopBroker) -> None:
    """So do the messages of a pop that the broker still holds at that time."""
    handler = Blocked()
    pop.add(4, 5, 6)
    async with member(pop.address, handler, consume_mode="pop", concurrency=1) as one:
        await eventually(lambda: one.topic().received == 3, "they are received")
        stopping = asyncio.create_task(one.stop())
        await eventually(lambda: len(pop.changes) == 2, "two are made visible")
        pop.add(9)
        await eventually(lambda: len(pop.changes) == 3, "the late one is made visible")
        handler.release.set()
        await stopping
    assert [handle.queue_offset for handle in pop.changes] == [5, 6, 9]
    assert pop.acked() == [(0, 4, 4)]


async def test_a_refused_dead_letter_is_sent_back_and_acknowledged(pop: PopBroker, broker: ScriptedBroker) -> None:
    """A broker without automatic topic creation creates the DLQ topic only for a send-back."""

    async def give_up(batch: Batch) -> None:
        raise DeadLetter("of no use")

    pop.peer.on(RequestCode.SEND_MESSAGE_V2, Reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic"))
    pop.add(4)
    async with member(pop.address, give_up, consume_mode="pop") as one:
        await eventually(lambda: pop.acked() == [(0, 4, 4)], "it is acknowledged")
        assert one.topic().handled["dead_lettered"] == 1
    assert [header.delay_level for header in broker.sent_back] == [-1]


@pytest.mark.parametrize("policy", ["stop", "dead_letter", "skip"])
async def test_a_corrupt_message_follows_its_policy_and_delays_no_other_message(
    pop: PopBroker, broker: ScriptedBroker, seen: Seen, policy: str
) -> None:
    good, bad = (
        encode_message(StoredMessage(topic=TOPIC, queue_id=0, queue_offset=offset, body=b"body%d" % offset))
        for offset in (4, 5)
    )
    pop.add(4, 5, record=good + corrupted(bad, b"body5"))
    async with member(pop.address, seen, consume_mode="pop", on_corrupt_message=policy) as one:
        pop.add(6)
        await seen.has(b"body4", b"x")
        await eventually(lambda: (0, 6, 6) in pop.acked(), "the next one is acknowledged")
        assert one.topic().handled["corrupt"] == 1
        assert one.topic().dead_letters["corrupt"] == (policy == "dead_letter")
    assert ((0, 4, 5) in pop.acked()) == (policy != "stop")
    assert len(broker.sent) == (policy == "dead_letter")


async def test_a_flow_controlled_member_pops_again_after_messages_are_finished(pop: PopBroker) -> None:
    handler = Blocked()
    pop.add(*range(4, 8))
    pop.add(*range(8, 12))
    with capture_logs() as logs:
        async with member(
            pop.address, handler, consume_mode="pop", pop_threshold_for_queue=3, pop_batch_nums=4, concurrency=8
        ) as one:
            await eventually(lambda: one.topic().flow_control["count"] == 1, "it is flow-controlled")
            assert len(pop.pops) == 1
            assert one.queue(-1) is not None
            handler.release.set()
            await eventually(lambda: one.topic().handled["acked"] == 8, "all are handled")
    [told] = [one for one in logs if one["event"] == "queue.flow_controlled"]
    assert (told["reason"], told["threshold"], told["count"], told["times"]) == ("count", 3, 4, 1)


async def test_a_paused_member_pops_nothing(pop: PopBroker, seen: Seen, flowing: ManualClock) -> None:
    async with member(pop.address, seen, clock=flowing, consume_mode="pop") as one:
        await eventually(lambda: popping(one), "it pops")
        await pop.peer.received(RequestCode.POP_MESSAGE)
        one.consumer.pause()
        pop.add(4)  # returned by the held pop
        await eventually(lambda: one.topic().received == 1, "the message is received")
        asked = len(pop.peer.got(RequestCode.POP_MESSAGE))
        await flowing.sleep(5)
        assert len(pop.peer.got(RequestCode.POP_MESSAGE)) == asked
        assert not seen.bodies
        one.consumer.resume()
        await seen.has(b"x")
