"""A group in POP mode at the embedded broker: acknowledgements, retries, and changes of the mode."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.ready_queues import ReadyQueues
from rmqd.consumer.stats.counters import TopicStats
from rmqd.handler_api.batch import Batch
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import dlq_topic, pop_retry_topic
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.blocks import block_of
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import Member, member
from tests.consumer.pop.popping import BROKER_NAME, LONG_SECONDS, Popping, popping
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

BODIES = [b"%d" % number for number in range(100)]


def queues_of(one: Member) -> list[ProcessQueue]:
    """The process queues of the topic that the member pulls."""
    caches = [cache for assigned in one.consumer.assignments() or [] for cache in assigned.process_queues]
    return [cache for cache in caches if cache.message_queue.topic == TOPIC]


@pytest.fixture
async def pop(flowing: ManualClock) -> AsyncIterator[Popping]:
    """A broker whose topic the group pops. Time flows for it and for the members."""
    async with popping(clock=flowing) as one:
        yield one


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll pop retry topics at short intervals."""
    monkeypatch.setattr("rmqd.consumer.pop.pop_retries.RETRY_TOPIC_POLL_SECONDS", 0.1)


async def test_the_pull_interval_applies_only_after_a_pop_with_messages(pop: Popping, seen: Seen) -> None:
    async with pop.member(seen, pull_interval_seconds=36_000.0):
        await pop.clock.sleep(20)  # until the broker has answered the held pop without messages
        await pop.send(b"first")
        await eventually(lambda: seen.bodies == [b"first"], "it is popped at once")


async def test_every_message_is_handled_once_and_acknowledged(pop: Popping, seen: Seen) -> None:
    await pop.send(*BODIES)
    async with pop.member(seen, pop_invisible_time_seconds=10.0) as one:
        await eventually(lambda: len(seen.bodies) >= len(BODIES), "all are handled")
        await pop.send(b"last")
        await eventually(lambda: b"last" in seen.bodies, "a pop that the broker held brought it")
        await eventually(pop.hides_nothing, "no message is invisible")
        assert sorted(seen.bodies) == sorted([*BODIES, b"last"])
        assert one.topic().handled["acked"] == len(BODIES) + 1
        assert not one.topic().duplicates
        [queue] = [queue for queue in one.consumer.snapshot().queues if not queue.is_retry]
        assert (queue.queue, queue.state, queue.cached) == (-1, "waiting", 0)
    assert await pop.lag() == 0


async def test_messages_that_wait_past_their_invisible_time_go_to_other_members(pop: Popping) -> None:
    first = Blocked()
    second = Seen()
    await pop.send(*BODIES[:10])
    with capture_logs() as logs:
        async with pop.member(first, concurrency=1, pop_invisible_time_seconds=10.0) as one:
            await eventually(lambda: one.topic().received == 10, "it has popped all")
            async with pop.member(second, pop_invisible_time_seconds=10.0):
                await eventually(lambda: len(second.bodies) == 9, "the others went to the second member", LONG_SECONDS)
                first.release.set()
                await eventually(lambda: one.topic().handled["acked"] == 1, "its own message is handled")
    assert sum(entry["messages"] for entry in logs if entry["event"] == "pop.left_to_others") >= 9


async def test_postponed_messages_are_visible_as_soon_as_the_member_stops(pop: Popping, seen: Seen) -> None:
    """No handler has them, so nothing waits for them. They must not stay hidden for the rest of the invisible time."""

    async def fail(batch: Batch) -> None:
        error = ConnectionError("the database is away")
        error.rmqd_wait_seconds = 30  # type: ignore[attr-defined]
        raise error

    hidden_seconds = 300.0
    await pop.send(b"waits")
    async with pop.member(fail, pop_invisible_time_seconds=hidden_seconds) as one:
        await eventually(lambda: one.topic().exceptions, "its call has failed")
        stopped_at = pop.clock.monotonic()
        await one.stop()
    async with pop.member(seen, pop_invisible_time_seconds=hidden_seconds):
        await eventually(lambda: seen.bodies == [b"waits"], "it is redelivered", LONG_SECONDS)
        assert pop.clock.monotonic() - stopped_at < hidden_seconds / 2


async def test_a_failed_message_is_redelivered_and_finally_dead_lettered(
    pop: Popping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqd.consumer.pop.pop_retries.POP_DELAY_LEVEL_SECONDS", (0.1, 0.2))
    attempts: list[tuple[bytes, int, str]] = []

    async def fail(batch: Batch) -> None:
        attempts.extend((message.body, message.reconsume_times, message.topic) for message in batch)
        raise ValueError("no")

    await pop.send(b"poison")
    async with pop.member(fail, max_reconsume_times=2) as one:
        await eventually(lambda: one.topic(is_retry=True).handled["dead_lettered"] == 1, "it is given up", LONG_SECONDS)
        assert attempts == [(b"poison", times, TOPIC) for times in (0, 1, 2)]
        assert one.topic().retries == {0: 1}
        assert one.topic(is_retry=True).retries == {1: 1}
    assert await pop.end_of(MessageQueue(dlq_topic(GROUP), BROKER_NAME, 0)) == 1
    assert await pop.lag(pop_retry_topic(GROUP, TOPIC)) == 0


@pytest.mark.usefixtures("looks_often")
async def test_a_group_that_returns_to_pull_mode_also_reads_its_popped_messages(pop: Popping) -> None:
    first, second = Blocked(), Seen()
    await pop.send(*BODIES[:20])
    async with pop.member(first, concurrency=1, pop_invisible_time_seconds=10.0) as one:
        await eventually(lambda: one.topic().received == 20, "it has popped all")
        await one.die()
    await pop.set_mode("PULL")
    async with pop.member(second, pop_invisible_time_seconds=10.0) as two:
        await eventually(lambda: set(second.bodies) == set(BODIES[:20]), "all of it is handled", LONG_SECONDS)
        topics = [queue.topic for queue in two.consumer.snapshot().queues]
        assert pop_retry_topic(GROUP, TOPIC) in topics
        await eventually(
            lambda: pop_retry_topic(GROUP, TOPIC) not in [one.topic for one in two.consumer.snapshot().queues],
            "it was empty for as long as messages are hidden",
            LONG_SECONDS,
        )
        assert two.queue(0) is not None
        await pop.set_mode("POP")
        two.consumer.on_consumer_ids_changed()
        await eventually(lambda: two.queue(-1) is not None, "it pops", LONG_SECONDS)
        await pop.send(b"popped")
        await eventually(lambda: b"popped" in second.bodies, "it handles what it pops")


async def test_pulled_messages_are_finished_and_committed_before_the_group_pops(pop: Popping) -> None:
    handler, other = Blocked(), Seen()
    await pop.set_mode("PULL")
    await pop.send(*BODIES[:8])
    async with pop.member(handler) as one:
        await eventually(lambda: one.topic().received == 8, "all are received")
        rebalances = one.consumer.snapshot().rebalances
        await pop.set_mode("POP")
        one.consumer.on_consumer_ids_changed()
        await eventually(lambda: all(queue.is_releasing for queue in queues_of(one)), "it releases its queues")
        assert one.queue(-1) is None
        handler.release.set()
        await eventually(lambda: one.queue(-1) is not None, "it pops")
        assert await pop.lag() == 0
        assert one.topic().received == 8
        assert one.consumer.snapshot().rebalances == rebalances + 2, "it released its queues, then acquired others"
        await one.stop()
    async with pop.member(other):
        await pop.send(b"after")
        await other.has(b"after")


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
async def test_other_modes_never_query_the_assignment(broker: ScriptedBroker, seen: Seen, mode: str) -> None:
    [queue] = broker.create_topic(TOPIC)
    asked: list[RemotingCommand] = []

    def note(command: RemotingCommand) -> Reply:
        asked.append(command)
        return Reply()

    broker.peer.on(RequestCode.QUERY_ASSIGNMENT, note)
    await broker.store(queue, b"x")
    async with member(broker.peer.address, seen, consume_mode=mode):
        await seen.has(b"x")
    assert not asked


async def test_messages_are_handed_out_in_the_order_of_the_pop(pop: Popping, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queue by queue, however long the handler takes, because a broker returns the highest priority first."""
    monkeypatch.setattr("rmqd.consumer.handling.batch_worker.TIME_SLICE_SECONDS", -1.0)  # one message per time slice
    queues: list[int] = []

    async def handle(batch: Batch) -> None:
        queues.append(batch.message_queue.queue_id)

    await pop.send(*BODIES[:12])
    async with pop.member(handle, concurrency=1):
        await eventually(lambda: len(queues) == 12, "all are handled")
    assert [queue for queue, _ in itertools.groupby(queues)] == list(dict.fromkeys(queues))
    assert len(set(queues)) == 4


class Numbered(ProcessQueue):
    """A process queue whose block numbers are the offsets of the messages."""

    def next_block_number(self) -> int:
        return self.pending[0].queue_offset


def test_the_oldest_pop_is_handed_out_first_and_empty_queues_are_removed() -> None:
    """Three pops return a message of each queue, the last queue first, faster than messages are handled."""
    ready, order, stats = ReadyQueues(), list[int](), TopicStats(TOPIC, is_retry=False)
    queues = [Numbered(MessageQueue(TOPIC, "b", number), 0, stats, "") for number in range(3)]

    def hand_out() -> None:
        ready.put_oldest_first()
        order.append(ready.queues[0].pending.popleft().queue_offset)
        if not ready.queues[0].pending:
            ready.not_to_add.discard(ready.queues.popleft())

    for pop in range(3):
        for place, queue in enumerate(reversed(queues)):
            queue.pending.extend(block_of([10 * pop + place]).messages)
            ready.submit(queue)
        hand_out()
    while ready.queues:
        hand_out()
    assert order == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    for queue in queues:
        queue.pending.extend(block_of([1]).messages)
        ready.submit(queue)
    queues[1].pending.clear()
    ready.put_oldest_first()
    assert ([*ready.queues], ready.not_to_add) == ([queues[0], queues[2]], {queues[0], queues[2]})
