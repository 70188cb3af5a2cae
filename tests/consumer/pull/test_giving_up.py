"""The release of a queue: its drain, its last commits and their deadline, and its unlock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from rmqd.codes import ResponseCode
from rmqd.consumer.assigned.assignment import ReleaseSignal
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import ReleasedOffset
from rmqd.consumer.pull.queue_release import QueueRelease
from rmqd.consumer.stats.counters import TopicStats
from rmqd.errors import OffsetStoreError, QueueTakenError, RemotingError, RmqdError
from rmqd.errors.broker_errors import NoPermissionError
from rmqd.wire.messages.message import Message
from tests.clock import ManualClock
from tests.consumer.blocks import QUEUE, block_of

AWAY = RemotingError("127.0.0.1:10911", "no answer")
FINAL = NoPermissionError(ResponseCode.NO_PERMISSION, "not you", "127.0.0.1:10911")

Answer = RmqdError | bool | asyncio.Event


class Store:
    """Answers commits from a list, and then accepts all. An event delays an answer until it is set."""

    def __init__(self) -> None:
        self.committed: dict[object, int] = {}
        self.asked: list[int] = []
        self.downward: list[int] = []
        self.answers: deque[Answer] = deque()
        self.settles: deque[bool] = deque()
        self.forgotten: list[object] = []

    async def commit_upward(self, queue: object, offset: int, may_commit: Callable[[], bool]) -> bool:
        self.asked.append(offset)
        return await self._answer(queue, offset)

    async def commit(self, queue: object, offset: int, *, downward: bool) -> None:
        assert downward
        self.downward.append(offset)
        await self._answer(queue, offset)

    async def wait_for_commits(self, queue: object, offset: int, until: float) -> bool:
        return self.settles.popleft() if self.settles else False

    def forget(self, queue: object) -> None:
        self.forgotten.append(queue)

    async def _answer(self, queue: object, offset: int) -> bool:
        answer = self.answers.popleft() if self.answers else True
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        elif isinstance(answer, RmqdError):
            raise answer
        elif not answer:
            return False
        self.committed[queue] = offset
        return True


class Case:
    """A queue to release, with messages 0 to 9 cached. A handler has the first `handed` of them."""

    def __init__(self, clock: ManualClock, handed: int = 0) -> None:
        self.clock = clock
        self.store = Store()
        self.holds = True
        self.start_grace_period = 5.0
        self.released: list[object] = []
        self.submitted: list[object] = []
        self.moved: deque[int | None] = deque()
        ownership = SimpleNamespace(
            holds=lambda queue: self.holds,
            start_grace_period=lambda queue: self.start_grace_period,
            release=self._release,
        )
        self.context: Any = SimpleNamespace(
            ownership=ownership,
            store=self.store,
            clock=clock,
            released_offsets={},
            refused_offsets={},
            move=lambda queue, offset: self.moved.append(offset),
            service=SimpleNamespace(submit=self.submitted.append),
        )
        self.queue = ProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False))
        self.queue.put(block_of(range(10), store_timestamp=7000), 10)
        self.handed: list[Message] = self.queue.take(handed) if handed else []
        if handed:
            self.queue.begin_turn()
        self.signal = ReleaseSignal(cast("Any", self.context), QUEUE)
        self.giving_up = QueueRelease(cast("Any", self.context), QUEUE, self.signal)
        self.former = ProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False))
        self.loop: Any = SimpleNamespace(
            process_queue=self.queue,
            replaced_queues=[self.former],
            request=SimpleNamespace(on_late_reset=None, reset_to=None),
        )

    def begin(self, seconds: float = 10.0, *, last: bool = False) -> asyncio.Task[None]:
        """Release the queue, as for a rebalance or for the stop of the group (`last`)."""
        self.signal.begin(seconds, last=last)
        return asyncio.create_task(self.giving_up.run(self.loop, self.set_new_start))

    async def abandon(self) -> None:
        await self.giving_up.abandon(self.loop, self.set_new_start)

    def finish(self, *numbers: int) -> None:
        self.queue.finish([self.handed[number] for number in numbers])

    def duplicates(self) -> dict[str, int]:
        return self.queue.stats.snapshot().duplicates

    async def _release(self, queue: object) -> None:
        self.released.append(queue)

    def set_new_start(self) -> int | None:
        if len(self.moved) > 1:
            return self.moved.popleft()
        return self.moved[0] if self.moved else None


def case_of(clock: ManualClock, handed: int = 0) -> Case:
    return Case(clock, handed)


async def test_a_release_commits_finished_messages_and_then_unlocks(clock: ManualClock) -> None:
    """The next owner starts at the first unhandled message. This member records the released offset."""
    case = case_of(clock, handed=3)
    case.finish(0, 1, 2)
    case.queue.end_turn()
    await case.begin()
    assert (case.store.asked, case.released, case.store.forgotten) == ([3], [QUEUE], [QUEUE])
    assert case.context.released_offsets == {QUEUE: ReleasedOffset(3, 7000)}
    assert (case.queue.dropped, case.queue.dropped_because, case.duplicates()) == (True, "handed_over", {})


async def test_a_queue_that_was_never_pulled_is_released_without_a_commit(clock: ManualClock) -> None:
    case = case_of(clock)
    case.loop = None
    case.store.committed[QUEUE] = 4
    await case.begin()
    assert (case.store.asked, case.released, case.store.forgotten) == ([], [QUEUE], [QUEUE])
    assert case.context.released_offsets == {QUEUE: ReleasedOffset(4, 0)}


async def test_the_store_time_of_pulled_messages_proves_nothing_about_a_commit_above_them(clock: ManualClock) -> None:
    """A PullConsumer commits any offset. The messages below it are no new messages of a recreated topic."""
    case = case_of(clock)
    case.store.answers.append(False)
    case.store.committed[QUEUE] = 11
    await case.begin()
    assert case.context.released_offsets == {QUEUE: ReleasedOffset(11, 0)}


async def test_a_release_waits_for_handlers_and_commits_their_messages(clock: ManualClock) -> None:
    """Also for batches of a cache that a reset replaced. Messages finished before are committed at once."""
    case = case_of(clock, handed=3)
    case.former.begin_turn()
    case.finish(0)
    giving_up = case.begin()
    await clock.advance(1)
    assert (case.store.asked, case.released) == ([1], [])
    assert case.submitted == [case.queue], "a group by key may still have messages to hand out"
    case.finish(1, 2)
    case.queue.end_turn()
    await clock.advance(1)
    assert not giving_up.done()
    case.former.end_turn()
    await giving_up
    assert (case.store.asked, case.released, case.duplicates()) == ([1, 3], [QUEUE], {})


async def test_after_the_grace_period_a_queue_is_released_without_a_commit(clock: ManualClock) -> None:
    """The next owner may have started, so messages finished above the stored offset count as handled twice."""
    case = case_of(clock, handed=3)
    case.finish(0)
    giving_up = case.begin(10)
    await clock.advance(0.5)
    case.finish(2)
    await clock.advance(14)
    assert not giving_up.done()
    await clock.advance(1)
    await giving_up
    assert (case.store.asked, case.released, case.duplicates()) == ([1], [QUEUE], {"handed_over": 1})


async def test_at_a_stop_the_lock_is_kept_while_handlers_run(clock: ManualClock) -> None:
    """Finished messages are committed, and the wait ends after the shutdown timeout."""
    case = case_of(clock, handed=3)
    giving_up = case.begin(10, last=True)
    await clock.advance(9.5)
    assert not giving_up.done()
    case.finish(0, 2)
    await clock.advance(0.6)
    await giving_up
    assert (case.store.asked[-1], case.released, case.store.forgotten) == (1, [], [])
    assert (case.queue.dropped_because, case.duplicates()) == ("stopped", {"stopped": 1})


async def test_the_stop_of_a_drained_group_releases_the_lock(clock: ManualClock) -> None:
    case = case_of(clock)
    await case.begin(last=True)
    assert (case.store.asked, case.released) == ([0], [QUEUE])


@pytest.mark.parametrize("last", [False, True])
async def test_a_forced_stop_ends_the_wait(clock: ManualClock, *, last: bool) -> None:
    """For example a second SIGTERM. The last commit of a group still has three seconds."""
    case = case_of(clock, handed=1)
    case.store.answers.extend([AWAY] * 100 if last else [])
    giving_up = case.begin(100, last=last)
    await clock.advance(1)
    assert not giving_up.done()
    case.signal.forced.set()
    await clock.advance(2.9)
    assert giving_up.done() != last
    await clock.advance(0.2)
    await giving_up
    assert case.queue.dropped


async def test_a_forced_stop_during_a_hand_over_keeps_the_lock(clock: ManualClock) -> None:
    """The group releases its locks after its handlers. One may still have a batch of an orderly queue."""
    case = case_of(clock, handed=1)
    giving_up = case.begin(100)
    await clock.advance(1)
    case.signal.forced.set()
    await giving_up
    assert (case.released, case.queue.dropped) == ([], True)


async def test_a_failed_commit_is_repeated_while_the_lock_is_held(clock: ManualClock) -> None:
    """Every 0.2 s. An earlier commit that may replace it causes one more commit."""
    case = case_of(clock, handed=1)
    case.finish(0)
    case.queue.end_turn()
    case.store.answers.extend([AWAY, AWAY])
    case.store.settles.extend([True])
    giving_up = case.begin(10)
    await clock.advance(0.19)
    assert case.store.asked == [1]
    await clock.advance(0.02)
    assert case.store.asked == [1, 1]
    await clock.advance(0.2)
    await giving_up
    assert (case.store.asked, case.released, case.duplicates()) == ([1] * 4, [QUEUE], {})


async def test_a_commit_that_never_succeeds_ends_with_the_grace_period(clock: ManualClock) -> None:
    """Its messages are handled again, and counted as handled twice."""
    case = case_of(clock, handed=2)
    case.store.committed[QUEUE] = 0
    case.finish(0, 1)
    case.queue.end_turn()
    case.store.answers.extend([AWAY] * 100)
    case.start_grace_period = 5
    giving_up = case.begin(0)
    await clock.advance(4.8)
    assert not giving_up.done()
    await clock.advance(0.4)
    await giving_up
    assert (len(case.store.asked), case.released, case.duplicates()) == (25, [QUEUE], {"handed_over": 2})


@pytest.mark.parametrize("why", ["final", "no news"])
async def test_a_failed_commit_is_not_repeated_if_refused_or_unneeded(clock: ManualClock, why: str) -> None:
    """The broker refuses permanently, or already has the offset."""
    case = case_of(clock, handed=2)
    case.finish(0, 1)
    case.queue.end_turn()
    case.store.committed[QUEUE] = 2 if why == "no news" else 0
    case.store.answers.extend([AWAY if why == "no news" else FINAL] * 9)
    with capture_logs() as logs:
        await case.begin()
    assert [(line["event"], line["offset"]) for line in logs] == [("offset.commit_failed", 2)]
    assert (len(case.store.asked), case.released) == (1, [QUEUE])
    assert case.duplicates() == ({} if why == "no news" else {"handed_over": 2})


@pytest.mark.parametrize(("error", "asked"), [(OffsetStoreError("unavailable"), 2), (QueueTakenError("taken"), 1)])
async def test_a_failed_commit_to_an_own_store_is_repeated_unless_the_queue_is_lost(
    clock: ManualClock, error: OffsetStoreError, asked: int
) -> None:
    """Repeating it would take the queue back from the member that has it now. A store may raise errors of its own."""
    case = case_of(clock, handed=1)
    case.finish(0)
    case.queue.end_turn()
    case.store.answers.append(error)
    giving_up = case.begin(last=True)
    await clock.advance(0.3)
    await giving_up
    assert case.store.asked == [1] * asked


async def test_a_release_waits_for_a_silent_broker_only_while_the_lock_is_held(clock: ManualClock) -> None:
    """Without a response the stored offset is unknown, so the messages count as handled twice."""
    case = case_of(clock, handed=2)
    case.store.committed[QUEUE] = 0
    case.finish(0, 1)
    case.queue.end_turn()
    case.store.answers.append(asyncio.Event())
    giving_up = case.begin(1)
    await clock.advance(4.9)
    assert not giving_up.done()
    await clock.advance(0.2)
    await giving_up
    assert (case.released, case.duplicates()) == ([QUEUE], {"handed_over": 2})


async def test_a_queue_without_its_lock_is_not_committed(clock: ManualClock) -> None:
    """Another member may own the queue."""
    case = case_of(clock, handed=2)
    case.store.committed[QUEUE] = 0
    case.finish(0, 1)
    case.holds = False
    giving_up = case.begin()
    await clock.advance(0.5)
    case.queue.end_turn()
    await giving_up
    assert (case.store.asked, case.duplicates()) == ([], {"handed_over": 2})


async def test_messages_of_a_last_commit_that_is_not_stored_count_as_handled_twice(clock: ManualClock) -> None:
    case = case_of(clock, handed=2)
    case.store.committed[QUEUE] = 0
    case.finish(0, 1)
    case.queue.end_turn()
    case.store.answers.append(False)
    await case.begin()
    assert (case.store.asked, case.released, case.duplicates()) == ([2], [QUEUE], {"handed_over": 2})


async def test_a_release_commits_an_operators_reset_instead_of_its_last_offset(clock: ManualClock) -> None:
    """A failed commit is repeated, and a second reset is committed too."""
    case = case_of(clock, handed=2)
    case.finish(0, 1)
    case.queue.end_turn()
    case.moved.extend([5, 5, 5, 4, 4])
    case.store.answers.extend([AWAY])
    case.context.refused_offsets[QUEUE] = object()
    giving_up = case.begin()
    await clock.advance(0.19)
    assert case.store.downward == [5]
    assert case.context.refused_offsets
    await clock.advance(0.1)
    await giving_up
    assert (case.store.asked, case.store.downward, case.released) == ([], [5, 5, 4], [QUEUE])
    assert case.store.committed[QUEUE] == 4
    assert not case.context.refused_offsets


async def test_a_reset_in_a_late_response_is_committed_by_the_release(clock: ManualClock) -> None:
    case = case_of(clock, handed=1)
    giving_up = case.begin()
    await clock.advance(0.1)
    case.loop.request.on_late_reset(5)
    case.queue.end_turn()
    await giving_up
    assert case.store.downward == [5]


@pytest.mark.parametrize("is_failed", [False, True])
async def test_a_call_that_ends_during_the_commit_of_a_reset_has_no_effect(
    clock: ManualClock, *, is_failed: bool
) -> None:
    """With an own store, its transaction would overwrite the reset."""
    case, answer = case_of(clock, handed=1), asyncio.Event()
    case.moved.append(5)
    case.store.answers.extend([answer] if is_failed else [True, answer])  # a commit during the drain comes first
    giving_up = asyncio.create_task(case.abandon()) if is_failed else case.begin(0.1, last=True)
    await clock.advance(0.2)
    assert case.store.downward == [5]
    assert case.queue.dropped
    answer.set()
    await giving_up


@pytest.mark.parametrize("is_failed", [False, True])
async def test_a_release_commits_a_reset_reported_by_an_earlier_pull(clock: ManualClock, *, is_failed: bool) -> None:
    """The broker reports a reset only once, so it counts even if the pull loop has not applied it."""
    case = case_of(clock, handed=2)
    case.finish(0, 1)
    case.queue.end_turn()
    case.loop.request.reset_to = 1
    await (case.abandon() if is_failed else case.begin())
    assert (case.store.asked, case.store.downward) == ([], [1])


async def test_a_permanently_refused_reset_is_not_repeated(clock: ManualClock) -> None:
    case = case_of(clock)
    case.moved.append(5)
    case.store.answers.extend([FINAL] * 9)
    await case.begin()
    assert (case.store.downward, case.released) == ([5], [QUEUE])


@pytest.mark.parametrize("is_releasing", [False, True])
async def test_a_failed_group_commits_finished_messages_for_up_to_three_seconds(
    clock: ManualClock, *, is_releasing: bool
) -> None:
    """It does not wait for messages in flight, and its locks expire."""
    case = case_of(clock, handed=3)
    case.finish(0, 2)
    if is_releasing:
        case.queue.start_release()
    case.store.answers.extend([AWAY] * 5)
    abandoning = asyncio.create_task(case.abandon())
    await clock.advance(0.9)
    assert not abandoning.done()
    assert not case.queue.pending
    await clock.advance(0.3)
    await abandoning
    assert (case.store.committed[QUEUE], case.released) == (1, [])
    assert (case.queue.dropped_because, case.duplicates()) == ("stopped", {"stopped": 1})


async def test_a_failed_group_waits_at_most_three_seconds(clock: ManualClock) -> None:
    case = case_of(clock)
    case.store.committed[QUEUE] = 7
    case.store.answers.append(asyncio.Event())
    abandoning = asyncio.create_task(case.abandon())
    await clock.advance(2.9)
    assert not abandoning.done()
    await clock.advance(0.2)
    await abandoning
    await case.giving_up.abandon(None, case.set_new_start)
    assert (case.store.asked, case.duplicates()) == ([0], {}), "the stored offset is higher, so nothing is redelivered"


async def test_an_unanswered_commit_does_not_delay_the_last_commit(clock: ManualClock) -> None:
    """The unanswered commit was sent during the drain."""
    case = case_of(clock, handed=2)
    case.finish(0)
    case.store.answers.append(asyncio.Event())
    giving_up = case.begin(10)
    await clock.advance(0.5)
    assert case.store.asked == [1]
    case.finish(1)
    case.queue.end_turn()
    await clock.advance(0.5)
    assert giving_up.done()
    assert (case.store.asked, case.released) == ([1, 2], [QUEUE])


async def test_a_short_drain_time_is_respected(clock: ManualClock) -> None:
    """Also a time of less than a second."""
    case = case_of(clock, handed=1)
    case.start_grace_period = 0.0
    giving_up = case.begin(0.2)
    await clock.advance(0.4)
    assert giving_up.done()
    assert case.released == [QUEUE]
