"""One ownership of a queue: its reports to the watchdog, its state, and offsets that change under it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.assigned.assignment import LazyEvent
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import ReleasedOffset
from rmqd.consumer.health.causes import Problem
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.pull.pull_loop import PullLoop
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.consumer.services import Ownership, RunningCall
from rmqd.errors.broker_errors import BrokerError
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.blocks import block_of
from tests.consumer.groups import GROUP, TOPIC, group_options, handler_of
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

PROBLEM = Problem("corrupt_message", "a message is corrupt", "skip it")
REFUSAL = BrokerError.of(ResponseCode.SYSTEM_ERROR, "store failed", "a")


class Locks(Ownership):
    """An ownership that a test grants."""

    def __init__(self) -> None:
        self.requests = 0
        self.granted = asyncio.Event()
        self.on_lost: Callable[[], None] = lambda: None

    async def acquire(
        self, queue: MessageQueue, on_lost: Callable[[], None], max_notice_delay_seconds: float = 0.0
    ) -> bool:
        self.requests += 1
        self.on_lost = on_lost
        await self.granted.wait()
        return True

    def holds(self, queue: MessageQueue) -> bool:
        return self.granted.is_set()


class Case:
    """A queue that a group with two slots was assigned, without the group's other tasks."""

    def __init__(self, broker: ScriptedBroker, queue: MessageQueue, clock: ManualClock) -> None:
        self.broker, self.queue, self.clock, self.locks = broker, queue, clock, Locks()
        self.client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)), clock=clock)
        options = group_options(concurrency=2)
        self.context = PushConsumer(options, handler_of(self._handle), self.client).context
        self.context.ownership = self.locks
        self.context.idle_queues[queue] = None
        self.assigned = AssignedQueue(self.context, queue)

    async def _handle(self, batch: Batch) -> None:
        raise AssertionError("no service runs")

    def pulled(self) -> PullLoop:
        """Let the queue look as if its first pull, at offset 5, was just answered. There are no more messages."""
        self.locks.granted.set()
        self.assigned.loop = loop = PullLoop(self.context, self.queue, 5)
        loop.max_offset = 5
        return loop

    def has_backlog_query(self) -> bool:
        if (query := self.assigned.measure()) is not None:
            query.close()
        return query is not None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[PullLoop]:
        """The queue is acquired and pulled at offset 5."""
        self.broker.offsets[GROUP, self.queue] = 5
        await self.broker.store(self.queue, *[b"x"] * 9, store_timestamp=2)
        self.locks.granted.set()
        async with running(self.assigned.run()):
            await eventually(lambda: self.broker.pulled_offsets(self.queue), "it is pulled")
            assert self.assigned.loop is not None
            yield self.assigned.loop


@pytest.fixture
async def case(broker: ScriptedBroker, queue: MessageQueue, clock: ManualClock) -> AsyncIterator[Case]:
    case = Case(broker, queue, clock)
    await case.client.routes.lookup(TOPIC)
    yield case
    await case.client.remoting.close()


async def test_a_queue_before_its_acquisition_waits_and_has_no_messages(case: Case) -> None:
    assert case.context.idle_queues == {}, "whatever it was in an earlier ownership"
    assert case.assigned.has_work()
    assert case.assigned.apply_options() == 0
    assert case.assigned.snapshot() is not None
    case.locks.granted.set()
    assert case.assigned.snapshot() is None, "it will start at once"


async def test_a_queue_is_idle_while_its_pull_is_held_for_no_longer_than_usual(case: Case) -> None:
    loop = case.pulled()
    assert case.assigned.is_idle(loop.last_request_at + 20.9)
    assert not case.assigned.is_idle(loop.last_request_at + 21.0)
    loop.failure = REFUSAL
    assert not case.assigned.is_idle(loop.last_request_at)


async def test_a_queue_has_work_if_its_backlog_is_unknown(case: Case) -> None:
    loop = case.pulled()
    assert not case.assigned.has_work()
    loop.failure = REFUSAL
    assert case.assigned.has_work()
    loop.failure = None
    loop.last_request_at, loop.end_queried_at = case.clock.monotonic() + 1.0, loop.last_response_at
    case.clock.turn(22.9)
    assert not case.assigned.has_work()
    case.clock.turn(0.1)
    assert case.assigned.has_work(), "its pull was not answered"


async def test_the_end_of_a_queue_is_queried_if_no_pull_reports_it(case: Case) -> None:
    """A held pull is answered as soon as the queue grows, so its answer is waited for longest."""
    loop = case.pulled()
    assert not case.has_backlog_query()
    loop.max_offset = None
    assert case.has_backlog_query()
    loop.max_offset = 5
    case.clock.turn(20.9)
    assert not case.has_backlog_query()
    case.clock.turn(0.1)
    assert case.has_backlog_query()
    loop.failure, loop.last_response_at = REFUSAL, case.clock.monotonic()
    case.clock.turn(4.9)
    assert not case.has_backlog_query()
    case.clock.turn(0.1)
    assert case.has_backlog_query()


async def test_the_last_event_of_the_loop_shows_that_it_runs(case: Case) -> None:
    loop = case.pulled()
    for name in ("last_request_at", "last_response_at", "checked_at"):
        case.clock.turn(1.0)
        setattr(loop, name, case.clock.monotonic())
        assert case.assigned.last_iteration_at == case.clock.monotonic()


async def test_the_lag_is_not_negative_if_the_queue_has_lost_its_end(case: Case) -> None:
    case.pulled().max_offset = 3
    snapshot = case.assigned.snapshot()
    assert snapshot is not None
    assert (snapshot.max, snapshot.lag) == (3, 0)


async def test_only_finished_messages_are_progress_while_messages_are_cached(case: Case) -> None:
    process_queue = case.pulled().process_queue
    process_queue.put(block_of(range(5, 8)), 8)
    process_queue.continue_at(9)
    assert case.assigned.progress() == (process_queue, None, 0)
    process_queue.finish(process_queue.take(1))
    assert case.assigned.progress() == (process_queue, None, 1)
    process_queue.finish(process_queue.take(2))
    assert case.assigned.progress() == (process_queue, 9, 3)


async def test_the_state_shows_where_the_messages_are(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> str:
        return "" if (snapshot := case.assigned.snapshot()) is None else snapshot.state

    loop = case.pulled()
    assert state() == "waiting"
    loop.max_offset = 6
    assert state() == "pulling"
    loop.process_queue.put(block_of([5]), 6)
    assert state() == "handling"
    monkeypatch.setattr(case.context.service, "circuit", SimpleNamespace(state="open"))
    assert state() == "paused", "no call is made"
    loop.process_queue.take(1)
    loop.process_queue.begin_turn()
    assert state() == "handling", "only the probe runs"
    loop.hold_reason, loop.last_response_at = "count", case.clock.monotonic()
    assert state() == "flow_controlled"
    case.clock.turn(5.0)
    assert case.has_backlog_query(), "while it is held back, the queue may grow unnoticed"


async def test_a_stall_behind_other_queues_names_the_longest_call(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.pulled().process_queue.put(block_of([5]), 6)
    other = ProcessQueue(MessageQueue(TOPIC, "a", 9), 0, case.context.stats[TOPIC])
    batch, now = Batch(block_of([0]).messages, other.message_queue), case.clock.now
    calls = [RunningCall(other, batch, now - seconds) for seconds in (3.0, 47.0, 8.0)]
    monkeypatch.setattr(case.context.service, "calls", lambda: calls)
    assert "47 s" in case.assigned.explain_stall().evidence


async def test_an_acquired_queue_waits_for_its_stored_offset_without_work(case: Case) -> None:
    """Only a failed query is work: a slow one is no stall."""
    case.broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, None)
    case.locks.granted.set()
    async with running(case.assigned.run()):
        await case.broker.peer.received(RequestCode.QUERY_CONSUMER_OFFSET)
        assert not case.assigned.has_work()


async def test_a_refused_query_of_the_start_offset_is_reported(case: Case) -> None:
    remark = "User:user has no permission to access Topic:t1 from 10.0.0.9, no matched policies."
    for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
        case.broker.peer.on(code, Reply(ResponseCode.NO_PERMISSION, remark))
    case.locks.granted.set()
    refusals = case.client.remoting.security.refusals
    async with running(case.assigned.run()):
        await case.clock.until(lambda: "Topic:t1" in str(refusals.current), "it is reported", 5.0)
        assert case.assigned.has_work()


@pytest.mark.parametrize(("committed", "falls"), [(5, 0), (6, 1)])
async def test_a_start_below_the_previous_commit_is_counted(case: Case, committed: int, falls: int) -> None:
    case.context.released_offsets[case.queue] = ReleasedOffset(committed, 0)
    async with case.running():
        assert case.context.stats[TOPIC].falls["take_over"] == falls
        assert case.context.released_offsets == {}


@pytest.mark.parametrize(("committed", "start"), [(5, 0), (4, 5)])
async def test_a_queue_that_was_recreated_after_its_release_is_pulled_from_its_first_message(
    case: Case, committed: int, start: int
) -> None:
    """If another member has committed since, it has pulled the newer messages."""
    case.context.released_offsets[case.queue] = ReleasedOffset(committed, 1)
    async with case.running() as loop:
        await eventually(lambda: loop.process_queue.next_offset == 9, "all is pulled")
        assert loop.process_queue.commit_offset() == start


@pytest.mark.parametrize(("seconds", "start"), [(4.9, 2), (5.0, 5)])
async def test_a_reset_before_the_acquisition_is_applied_within_five_seconds(
    case: Case, seconds: float, start: int
) -> None:
    """The previous owner has applied it as well, and may have handled messages since."""
    case.assigned.move_to(2)
    case.clock.turn(seconds)
    async with case.running():
        await eventually(lambda: case.broker.pulled_offsets(case.queue)[-1] == 9, "all is pulled")
    assert case.broker.pulled_offsets(case.queue)[0] == start


async def test_a_reset_of_an_owned_queue_is_applied_once_however_long_it_waits(case: Case) -> None:
    async with case.running():
        await eventually(lambda: case.broker.pulled_offsets(case.queue)[-1] == 9, "all is pulled")
        assert case.assigned.move_to(2)
        case.clock.turn(6.0)
        await eventually(lambda: case.broker.pulled_offsets(case.queue)[-2:] == [2, 9], "it is pulled again")
        pulls = len(case.broker.pulled_offsets(case.queue))
        case.assigned.restart_loop()
        await eventually(lambda: len(case.broker.pulled_offsets(case.queue)) > pulls, "the loop is restarted")
        assert case.broker.pulled_offsets(case.queue).count(2) == 1


async def test_a_reset_of_a_queue_without_its_lock_is_void_after_five_seconds(case: Case) -> None:
    """Another member may own the queue, and has applied the reset."""
    async with case.running():
        await eventually(lambda: case.broker.pulled_offsets(case.queue)[-1] == 9, "all is pulled")
        case.locks.granted.clear()
        case.locks.on_lost()
        case.assigned.move_to(2)
        case.clock.turn(5.0)
        pulls = len(case.broker.pulled_offsets(case.queue))
        case.locks.granted.set()
        await eventually(lambda: len(case.broker.pulled_offsets(case.queue)) > pulls, "it is pulled again")
        assert 2 not in case.broker.pulled_offsets(case.queue)


async def test_a_seek_returns_when_its_pull_starts(case: Case) -> None:
    """The cached messages are dropped at once."""
    async with case.running() as loop:
        for offset in (7, 3):
            begun, cache = list[int](), loop.process_queue
            seek = asyncio.create_task(
                case.assigned.seek(offset, lambda cache, begun=begun: begun.append(cache.next_offset))  # type: ignore[misc]
            )
            await asyncio.sleep(0)
            assert cache.dropped
            await seek
            assert begun == [offset]


async def test_a_seek_returns_when_the_queue_is_released(case: Case) -> None:
    async with running(case.assigned.run()):
        seek = asyncio.create_task(case.assigned.seek(7, lambda cache: None))
        await asyncio.sleep(0)
        case.assigned.release(0.0)
        await seek


async def test_a_lower_offset_after_a_lost_lock_is_ignored_if_the_broker_lost_ours(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is still valid. Until that is known, nothing is handed out. The lock is requested once."""
    halted = list[ProcessQueue]()
    monkeypatch.setattr(case.context.service, "halt", halted.append)
    async with case.running() as loop:
        await eventually(lambda: case.broker.pulled_offsets(case.queue)[-1] == 9, "all is pulled")
        case.context.idle_queues[case.queue] = None
        monkeypatch.setattr(case.context.store, "may_be_lost", lambda _: True)
        case.broker.offsets[GROUP, case.queue] = 4
        case.locks.on_lost()
        assert loop.process_queue.awaits_lock
        assert halted == [loop.process_queue]
        assert not case.context.idle_queues
        pulls = len(case.broker.pulls)
        await eventually(lambda: len(case.broker.pulls) > pulls, "it is pulled again")
        assert not loop.process_queue.awaits_lock
        before_restart = len(case.broker.pulls)
        case.assigned.restart_loop()
        await eventually(lambda: len(case.broker.pulls) > before_restart, "the loop is restarted")
        assert case.locks.requests == 2
    assert case.broker.pulls[pulls].queue_offset == 9


async def test_an_equal_offset_after_a_lost_lock_is_not_ours_if_the_groups_own_store_says_so(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member has written progress above the offset. The broker may also have been restarted."""
    async with case.running() as loop:
        await eventually(lambda: case.broker.pulled_offsets(case.queue)[-1] == 9, "all is pulled")
        cache = loop.process_queue
        monkeypatch.setattr(case.context.store, "may_be_lost", lambda _: True)
        monkeypatch.setattr(case.context.store, "may_have_committed", lambda queue, stored: False)
        case.locks.on_lost()
        await eventually(lambda: cache.dropped, "the cache is dropped")


async def test_the_problem_of_an_unread_queue_ends_with_its_release(case: Case) -> None:
    case.context.problems.begin(("unread", case.queue), PROBLEM)
    async with case.running():
        case.assigned.release(0.0)
        await eventually(lambda: not list(case.context.problems), "it is over", 5.0)


async def test_work_is_not_started_after_its_event() -> None:
    event = LazyEvent()
    event.set()
    await event.run_until_set(asyncio.sleep(60))


async def test_an_event_wakes_each_wait_once() -> None:
    event, woken = LazyEvent(), list[int]()

    async def wait(number: int) -> None:
        await event.wait()
        woken.append(number)

    for number in range(2):
        event.clear()
        waiting = asyncio.create_task(wait(number))
        await asyncio.sleep(0)
        event.set()
        await waiting
        event.clear()
        await event.run_until_set(asyncio.sleep(0))
    assert woken == [0, 1]
    assert not event._on_set
