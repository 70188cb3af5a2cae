"""Receipts of popped messages: acknowledgements and changes of the invisible time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.pop.receipts import COLLECT_ACKS_SECONDS, PopReceipts
from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.bodies.pop_bodies import BatchAckMessageRequestBody
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Reply
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.pop.popped import INVISIBLE_SECONDS, popped
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually


@dataclass(slots=True)
class Case:
    """Receipts, the broker that gets them, and a clock that the test moves."""

    broker: ScriptedBroker
    client: ClientInstance
    clock: ManualClock
    receipts: PopReceipts
    stats: TopicStats

    def batches(self) -> list[list[int]]:
        """The offsets of each request so far."""
        bodies = [
            BatchAckMessageRequestBody.from_json(command.body)
            for command in self.broker.peer.got(RequestCode.BATCH_ACK_MESSAGE)
        ]
        return [[offset for ack in body.acks for offset in ack.offsets] for body in bodies]

    def singly(self) -> list[int]:
        """The offsets that were acknowledged one by one."""
        return [int(command.ext_fields["offset"]) for command in self.broker.peer.got(RequestCode.ACK_MESSAGE)]

    async def gathered(self) -> None:
        """Let the time pass in which acknowledgements are collected."""
        await self.clock.advance(COLLECT_ACKS_SECONDS)

    async def idle(self) -> None:
        await eventually(lambda: self.receipts.is_idle, "all requests are answered")


@pytest.fixture
async def case(broker: ScriptedBroker, clock: ManualClock) -> AsyncIterator[Case]:
    """Running receipts, with a broker that accepts all of them."""
    broker.create_topic(TOPIC)
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
    await client.routes.lookup(TOPIC)
    broker.peer.on(RequestCode.BATCH_ACK_MESSAGE, Reply())
    broker.peer.on(RequestCode.ACK_MESSAGE, Reply())
    receipts = PopReceipts(client, GROUP, clock)
    async with running(receipts.run()):
        yield Case(broker, client, clock, receipts, TopicStats(TOPIC, is_retry=False))
    await client.remoting.close()


def soon(case: Case) -> float:
    return case.clock.monotonic() + INVISIBLE_SECONDS


async def test_acknowledgements_within_the_collection_time_share_a_request(case: Case) -> None:
    """Later ones get their own request, and none is sent twice."""
    block = popped(range(5), soon(case))
    assert case.receipts.is_idle
    case.receipts.acknowledge(block, [], case.stats)
    assert case.receipts.is_idle
    case.receipts.acknowledge(block, [0], case.stats)
    await asyncio.sleep(0)
    case.receipts.acknowledge(block, [2, 3], case.stats)
    assert block.settled == {0, 2, 3}
    assert not case.receipts.is_idle
    assert case.batches() == []
    await case.gathered()
    await case.idle()
    case.receipts.acknowledge(block, [1], case.stats)
    assert not case.receipts.is_idle
    await case.gathered()
    await case.idle()
    assert case.batches() == [[0, 2, 3], [1]]


async def test_receipts_are_not_idle_while_a_broker_has_no_address(case: Case) -> None:
    """The acknowledgement for the unknown broker stays queued."""
    case.receipts.acknowledge(popped([1], soon(case)), [1], case.stats)
    case.receipts.acknowledge(popped([2], soon(case), broker_name="gone"), [2], case.stats)
    await case.gathered()
    await eventually(lambda: case.batches() == [[1]], "the other broker has its acknowledgement")
    assert not case.receipts.is_idle
    await case.receipts.flush(0)
    assert not case.receipts.is_idle


async def test_flush_does_not_wait_for_the_collection_time(case: Case) -> None:
    """It waits only for the responses."""
    release = asyncio.Event()

    async def later(_: RemotingCommand) -> Reply:
        await release.wait()
        return Reply()

    await case.receipts.flush(10)
    case.broker.peer.on(RequestCode.BATCH_ACK_MESSAGE, later)
    block = popped(range(3), soon(case))
    case.receipts.acknowledge(block, [0], case.stats)
    flushing = asyncio.create_task(case.receipts.flush(10))
    await eventually(lambda: len(case.batches()) <= 1 and case.receipts._acks, "the flush has begun")
    await case.gathered()
    await case.broker.peer.received(RequestCode.BATCH_ACK_MESSAGE)
    case.receipts.acknowledge(block, [1], case.stats)
    release.set()
    await case.broker.peer.received(RequestCode.BATCH_ACK_MESSAGE, 2)  # although the clock does not move
    await flushing
    assert case.batches() == [[0], [1]]
    case.receipts.acknowledge(block, [2], case.stats)
    await asyncio.sleep(0.05)
    assert case.batches() == [[0], [1]], "after the flush the collection time applies again"
    await case.gathered()
    await case.idle()


async def test_flush_ends_at_its_timeout(case: Case) -> None:
    """A silent broker does not extend it."""
    case.broker.peer.on(RequestCode.BATCH_ACK_MESSAGE, None)
    case.receipts.acknowledge(popped([0], soon(case)), [0], case.stats)
    flushing = asyncio.create_task(case.receipts.flush(10))
    await case.gathered()
    await case.broker.peer.received(RequestCode.BATCH_ACK_MESSAGE)
    assert not flushing.done()
    await case.clock.advance(10)
    await flushing
    assert not case.receipts.is_idle


async def test_a_failed_batch_is_sent_again_after_a_second_with_newer_acks(case: Case) -> None:
    """The failed ones come first."""
    asked, release = asyncio.Event(), asyncio.Event()

    async def busy_at_first(_: RemotingCommand) -> Reply:
        if release.is_set():
            return Reply()
        asked.set()
        await release.wait()
        return Reply(ResponseCode.SYSTEM_BUSY, "later")

    case.broker.peer.on(RequestCode.BATCH_ACK_MESSAGE, busy_at_first)
    block = popped(range(5), soon(case))
    case.receipts.acknowledge(block, [0, 1], case.stats)
    await case.gathered()
    await asked.wait()
    case.receipts.acknowledge(block, [2], case.stats)
    case.receipts.acknowledge(block, [3], case.stats)
    release.set()
    await case.clock.advance(0.9)
    assert case.batches() == [[0, 1]]
    assert not case.receipts.is_idle
    await case.clock.advance(0.1 + COLLECT_ACKS_SECONDS)
    await case.idle()
    assert case.batches() == [[0, 1], [0, 1, 2, 3]]
    assert not case.stats.duplicates


async def test_a_refused_batch_is_sent_singly_and_refused_messages_are_counted(case: Case) -> None:
    """Each refusal concerns one message and is logged. A message with a temporary error is sent again alone."""
    answers = {
        0: deque([Reply()]),
        1: deque([Reply(ResponseCode.MESSAGE_ILLEGAL, "no such handle")]),
        2: deque([Reply(ResponseCode.SYSTEM_BUSY, "later"), Reply()]),
    }
    case.broker.peer.on(RequestCode.BATCH_ACK_MESSAGE, Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "what is it"))
    case.broker.peer.on(RequestCode.ACK_MESSAGE, lambda command: answers[int(command.ext_fields["offset"])].popleft())
    with capture_logs() as logs:
        case.receipts.acknowledge(popped(range(3), soon(case)), [0, 1, 2], case.stats)
        await case.gathered()
        await eventually(lambda: len(case.singly()) == 3, "each is sent")
        await eventually(lambda: case.stats.duplicates == {"ack_refused": 1}, "the refused one is counted")
        await asyncio.sleep(0.02)
        await case.clock.advance(1)
        await case.gathered()
        await case.idle()
    told = [(one["messages"], "no such handle" in one["error"]) for one in logs if one["event"] == "ack.failed"]
    assert sorted(told) == [(1, False), (1, True)]
    assert case.singly() == [0, 1, 2, 2]
    assert case.stats.duplicates == {"ack_refused": 1}


async def test_lite_topic_messages_are_acknowledged_singly_and_others_in_a_batch(case: Case) -> None:
    block, lite = popped(range(3), soon(case)), popped([5, 6], soon(case))
    lite.__class__ = type("Lite", (PopBlock,), {"__slots__": (), "lite_topic": "s1"})
    case.receipts.acknowledge(block, [0, 2], case.stats)
    case.receipts.acknowledge(lite, [5, 6], case.stats)
    await case.gathered()
    await case.idle()
    assert (case.batches(), case.singly()) == ([[0, 2]], [5, 6])


async def test_acknowledgements_after_the_invisible_time_are_not_sent(case: Case) -> None:
    """Their messages are counted as duplicates."""
    block = popped(range(3), case.clock.monotonic() + 1)
    assert not case.receipts.is_late(block, 0)
    case.receipts.acknowledge(block, [0, 1], case.stats)
    await asyncio.sleep(0)
    case.clock.turn(1)
    assert case.receipts.is_late(block, 0)
    await case.gathered()
    await case.idle()
    assert case.batches() == []
    assert case.stats.duplicates == {"invisible_time": 2}


async def test_an_extended_invisible_time_applies_to_one_message_only(case: Case) -> None:
    """Acknowledgements of other messages of the block do not wait for the new handle."""
    release = asyncio.Event()

    async def hide(command: RemotingCommand) -> Reply:
        await release.wait()
        invisible = command.ext_fields["invisibleTime"]
        return Reply(ext_fields={"popTime": "2000", "invisibleTime": invisible, "reviveQid": "5"})

    case.broker.peer.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, hide)
    block = popped(range(3), case.clock.monotonic() + 1)
    renewing = asyncio.create_task(case.receipts.extend_invisible_time(block, 1, 5000))
    await case.broker.peer.received(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    case.receipts.acknowledge(block, [0, 1], case.stats)
    await case.gathered()
    await eventually(lambda: case.batches() == [[0]], "the unchanged message is acknowledged")
    release.set()
    assert await renewing
    case.receipts.acknowledge(block, [2], case.stats)
    assert block.due_of(1) == case.clock.monotonic() - COLLECT_ACKS_SECONDS + 5
    await case.gathered()
    await eventually(lambda: len(case.batches()) == 2, "the other messages are acknowledged")
    assert sorted(case.batches()[1]) == [1, 2]
    case.clock.turn(1)
    assert [case.receipts.is_late(block, offset) for offset in (0, 1, 2)] == [True, False, True]
    case.clock.turn(4)
    assert case.receipts.is_late(block, 1)
    await case.idle()


async def test_a_retry_waits_for_the_new_handle_and_sets_the_delay(case: Case) -> None:
    """The previous handle is invalid by then."""
    asked: list[tuple[str, str]] = []
    release = asyncio.Event()

    async def hide(command: RemotingCommand) -> Reply:
        asked.append((command.ext_fields["extraInfo"].split()[1], command.ext_fields["invisibleTime"]))
        await release.wait()
        invisible = command.ext_fields["invisibleTime"]
        return Reply(ext_fields={"popTime": "2000", "invisibleTime": invisible, "reviveQid": "5"})

    case.broker.peer.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, hide)
    block = popped(range(2), soon(case))
    renewing = asyncio.create_task(case.receipts.extend_invisible_time(block, 1, 5000))
    await case.broker.peer.received(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    retrying = asyncio.create_task(case.receipts.retry_later(block, 1, 1800))
    await asyncio.sleep(0.02)
    assert block.settled == {1}, "the retried message is settled"
    release.set()
    assert await renewing
    await retrying
    assert asked == [("1000", "5000"), ("2000", "1800000")]


async def test_make_visible_does_not_wait_for_responses(case: Case) -> None:
    """The invisible time of 100 ms is the shortest that brokers check. An unknown broker gets no request.

    Late messages are skipped, because the broker would copy them once more.
    """
    case.broker.peer.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, None)
    block, gone = popped(range(3), soon(case)), popped([7], soon(case), broker_name="gone")
    late = popped([9], case.clock.monotonic())
    case.receipts.acknowledge(block, [0], case.stats)  # opens a connection
    await case.gathered()
    await case.idle()
    case.receipts.make_visible(late, [9])
    case.receipts.make_visible(block, [1, 2])
    case.receipts.make_visible(gone, [7])
    told = await case.broker.peer.received(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, 2)
    assert [(one.ext_fields["offset"], one.ext_fields["invisibleTime"]) for one in told] == [
        ("1", "100"), ("2", "100"),
    ]  # fmt: skip
    assert (block.settled, gone.settled, late.settled) == ({0, 1, 2}, {7}, {9})


async def test_messages_from_a_closed_connection_are_not_made_visible(case: Case) -> None:
    """A group that has left does not wait for its last pop, whose response may arrive just before the close."""
    connection = await case.client.remoting.connection(case.broker.peer.address)
    await case.broker.peer.down()
    await eventually(lambda: not connection.is_open, "the connection is closed")
    block = popped(range(2), soon(case))
    case.receipts.make_visible(block, [0, 1], connection)
    assert block.settled == {0, 1}


async def test_acknowledgements_before_the_start_are_sent_after_it(broker: ScriptedBroker, clock: ManualClock) -> None:
    broker.create_topic(TOPIC)
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
    await client.routes.lookup(TOPIC)
    broker.peer.on(RequestCode.BATCH_ACK_MESSAGE, Reply())
    receipts, stats = PopReceipts(client, GROUP, clock), TopicStats(TOPIC, is_retry=False)
    for offset in (1, 2):
        receipts.acknowledge(popped([offset], clock.monotonic() + INVISIBLE_SECONDS), [offset], stats)
        async with running(receipts.run()):
            await asyncio.sleep(0)
            await clock.advance(COLLECT_ACKS_SECONDS)
            await broker.peer.received(RequestCode.BATCH_ACK_MESSAGE, offset)
            await eventually(lambda: receipts.is_idle, "the request is answered")
    receipts.acknowledge(popped([3], clock.monotonic() + 1, broker_name="another"), [3], stats)
    assert not receipts.is_idle
    await client.remoting.close()
