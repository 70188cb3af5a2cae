"""How a queue is given up: what is waited for, what is committed and until when, and when the lock is freed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmqd.codes import ResponseCode
from rmqd.consumer.assigned.assignment import ReleaseSignal
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import ReleasedOffset
from rmqd.consumer.pull.queue_release import QueueRelease
from rmqd.consumer.stats.counters import TopicStats
from rmqd.errors import RemotingError, RmqdError
from rmqd.errors.broker_errors import NoPermissionError
from rmqd.wire.messages.message import Message
from tests.clock import ManualClock
from tests.consumer.blocks import QUEUE, block_of

AWAY = RemotingError("127.0.0.1:10911", "no answer")
FINAL = NoPermissionError(ResponseCode.NO_PERMISSION, "not you", "127.0.0.1:10911")

Answer = RmqdError | bool | asyncio.Event


class Store:
    """Answers commits from a list, and then takes all of them. An event holds an answer back until it is set."""

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
    """A queue that is given up: messages 0 to 9 are cached, of which a handler has the first `handed`."""

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
        """Give up, as a rebalance does or the end of the group (`last`)."""
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


async def test_what_is_finished_is_committed_and_then_the_lock_is_freed(clock: ManualClock) -> None:
    """The next owner begins at the first message that no handler had, and whoever comes back there knows how far."""
    case = case_of(clock, handed=3)
    case.finish(0, 1, 2)
    case.queue.end_turn()
    await case.begin()
    assert (case.store.asked, case.released, case.store.forgotten) == ([3], [QUEUE], [QUEUE])
    assert case.context.released_offsets == {QUEUE: ReleasedOffset(3, 7000)}
    assert (case.queue.dropped, case.queue.dropped_because, case.duplicates()) == (True, "handed_over", {})


async def test_a_queue_that_was_never_pulled_is_let_go(clock: ManualClock) -> None:
    case = case_of(clock)
    case.loop = None
    case.store.committed[QUEUE] = 4
    await case.begin()
    assert (case.store.asked, case.released, case.store.forgotten) == ([], [QUEUE], [QUEUE])
    assert case.context.released_offsets == {QUEUE: ReleasedOffset(4, 0)}


async def test_handlers_are_waited_for_and_what_they_finish_is_committed(clock: ManualClock) -> None:
    """Also those with a batch of a cache that a reset replaced. What is finished by then is committed meanwhile."""
    case = case_of(clock, handed=3)
    case.former.begin_turn()
    case.finish(0)
    giving_up = case.begin()
    await clock.advance(1)
    assert (case.store.asked, case.released) == ([1], [])
    assert case.submitted == [case.queue], "a group by key may have something to hand out still"
    case.finish(1, 2)
    case.queue.end_turn()
    await clock.advance(1)
    assert not giving_up.done()
    case.former.end_turn()
    await giving_up
    assert (case.store.asked, case.released, case.duplicates()) == ([1, 3], [QUEUE], {})


async def test_at_the_end_of_the_time_and_of_the_lock_the_queue_is_let_go_without_a_commit(clock: ManualClock) -> None:
    """The next owner may have begun: what is finished above the stored offset counts as handled twice."""
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


async def test_at_the_end_of_the_group_the_lock_is_kept_until_handlers_have_ended(clock: ManualClock) -> None:
    """But what is finished is committed, and no longer is waited than the group says."""
    case = case_of(clock, handed=3)
    giving_up = case.begin(10, last=True)
    await clock.advance(9.5)
    assert not giving_up.done()
    case.finish(0, 2)
    await clock.advance(0.6)
    await giving_up
    assert (case.store.asked[-1], case.released, case.store.forgotten) == (1, [], [])
    assert (case.queue.dropped_because, case.duplicates()) == ("stopped", {"stopped": 1})


async def test_the_end_of_a_drained_group_frees_the_lock(clock: ManualClock) -> None:
    case = case_of(clock)
    await case.begin(last=True)
    assert (case.store.asked, case.released) == ([0], [QUEUE])


@pytest.mark.parametrize("last", [False, True])
async def test_a_hurry_ends_the_wait(clock: ManualClock, *, last: bool) -> None:
    """As a second SIGTERM does: the last commit of a group has three seconds all the same."""
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


async def test_a_hand_over_that_a_hurry_ends_keeps_the_lock_until_handlers_have_ended(clock: ManualClock) -> None:
    """The group ends, and frees its locks behind its handlers: a batch of an orderly queue may still be at one."""
    case = case_of(clock, handed=1)
    giving_up = case.begin(100)
    await clock.advance(1)
    case.signal.forced.set()
    await giving_up
    assert (case.released, case.queue.dropped) == ([], True)


async def test_a_commit_that_fails_is_tried_for_as_long_as_the_lock_is_safe(clock: ManualClock) -> None:
    """Every fifth of a second; an earlier commit that may replace it makes it go once more."""
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


async def test_a_commit_that_never_succeeds_ends_with_the_lock(clock: ManualClock) -> None:
    """What was finished is handled again, and counted so."""
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
async def test_a_commit_is_not_tried_again_in_vain(clock: ManualClock, why: str) -> None:
    """Where the broker refuses for good, or has the offset already."""
    case = case_of(clock, handed=2)
    case.finish(0, 1)
    case.queue.end_turn()
    case.store.committed[QUEUE] = 2 if why == "no news" else 0
    case.store.answers.extend([AWAY if why == "no news" else FINAL] * 9)
    await case.begin()
    assert (len(case.store.asked), case.released) == (1, [QUEUE])
    assert case.duplicates() == ({} if why == "no news" else {"handed_over": 2})


async def test_a_silent_broker_is_waited_for_no_longer_than_the_lock_is_safe(clock: ManualClock) -> None:
    """Without the answer nobody knows what is stored: it counts as if nothing were."""
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


async def test_without_its_lock_a_queue_is_not_committed(clock: ManualClock) -> None:
    """Another member may have it."""
    case = case_of(clock, handed=2)
    case.store.committed[QUEUE] = 0
    case.finish(0, 1)
    case.holds = False
    giving_up = case.begin()
    await clock.advance(0.5)
    case.queue.end_turn()
    await giving_up
    assert (case.store.asked, case.duplicates()) == ([], {"handed_over": 2})


async def test_a_higher_offset_of_the_broker_stays(clock: ManualClock) -> None:
    """It is no commit of ours; what is finished here above nothing is known of counts."""
    case = case_of(clock, handed=2)
    case.store.committed[QUEUE] = 0
    case.finish(0, 1)
    case.queue.end_turn()
    case.store.answers.append(False)
    await case.begin()
    assert (case.store.asked, case.released, case.duplicates()) == ([2], [QUEUE], {"handed_over": 2})


async def test_where_an_operator_moved_the_queue_the_next_owner_begins(clock: ManualClock) -> None:
    """Instead of the last commit; tried again while that may help, and once more if it is moved again."""
    case = case_of(clock, handed=2)
    case.finish(0, 1)
    case.queue.end_turn()
    case.moved.extend([5, 5, 5, 4, 4])
    case.store.answers.extend([AWAY])
    giving_up = case.begin()
    await clock.advance(0.19)
    assert case.store.downward == [5]
    await clock.advance(0.1)
    await giving_up
    assert (case.store.asked, case.store.downward, case.released) == ([], [5, 5, 4], [QUEUE])
    assert case.store.committed[QUEUE] == 4


@pytest.mark.parametrize("is_failed", [False, True])
async def test_a_reset_that_a_former_pull_told_of_is_where_the_next_owner_begins(
    clock: ManualClock, *, is_failed: bool
) -> None:
    """Also where the pull loop had no time to obey it: the broker tells of it once."""
    case = case_of(clock, handed=2)
    case.finish(0, 1)
    case.queue.end_turn()
    case.loop.request.reset_to = 1
    await (case.abandon() if is_failed else case.begin())
    assert (case.store.asked, case.store.downward) == ([], [1])


async def test_a_move_that_is_refused_for_good_is_not_tried_again(clock: ManualClock) -> None:
    case = case_of(clock)
    case.moved.append(5)
    case.store.answers.extend([FINAL] * 9)
    await case.begin()
    assert (case.store.downward, case.released) == ([5], [QUEUE])


@pytest.mark.parametrize("is_releasing", [False, True])
async def test_a_group_that_fails_commits_what_is_finished_for_three_seconds(
    clock: ManualClock, *, is_releasing: bool
) -> None:
    """What handlers have is not waited for, and the locks end by themselves."""
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


async def test_a_group_that_fails_waits_three_seconds_at_most(clock: ManualClock) -> None:
    case = case_of(clock)
    case.store.committed[QUEUE] = 7
    case.store.answers.append(asyncio.Event())
    abandoning = asyncio.create_task(case.abandon())
    await clock.advance(2.9)
    assert not abandoning.done()
    await clock.advance(0.2)
    await abandoning
    await case.giving_up.abandon(None, case.set_new_start)
    assert (case.store.asked, case.duplicates()) == ([0], {}), "what is stored is higher: nothing comes again"


async def test_a_commit_without_an_answer_holds_up_none_that_follows(clock: ManualClock) -> None:
    """The one that is sent beside the wait for handlers: when they are done, the last one is sent."""
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


async def test_a_short_time_for_handlers_is_kept(clock: ManualClock) -> None:
    """Also one of less than a second."""
    case = case_of(clock, handed=1)
    case.start_grace_period = 0.0
    giving_up = case.begin(0.2)
    await clock.advance(0.4)
    assert giving_up.done()
    assert case.released == [QUEUE]
