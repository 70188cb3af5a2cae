"""How `OffsetWatch` judges a stored offset before a commit."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.offsets.persistence import OFFSET_WATCH_SECONDS, RESET_REPORT_SECONDS, OffsetWatch
from rmqd.errors import RmqdError
from tests.clock import ManualClock

BEGAN = 1000.0  # monotonic
FOUND = 10  # at the acquisition


@dataclass
class Told:
    """The resets and overlaps that the queue's owner is notified of."""

    process_queues: tuple[ProcessQueue, ...] = ()
    resets: list[int] = field(default_factory=list)
    overlaps: list[int] = field(default_factory=list)

    def move_to(self, offset: int) -> None:
        self.resets.append(offset)

    def count_handled_twice(self, messages: int) -> None:
        self.overlaps.append(messages)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def watch(told: Told) -> OffsetWatch:
    """The watch of an ownership that began at 10, after the previous owner had left."""
    return OffsetWatch(told, BEGAN + OFFSET_WATCH_SECONDS, None, FOUND, FOUND)


def look(watch: OffsetWatch, stored: int | None, offset: int = 15, *ours: int, after: float = 0.0) -> bool:
    """Whether `offset` may replace the stored offset, if `ours` are this owner's commits."""
    return watch.may_commit(stored, offset, frozenset(ours or {FOUND}), BEGAN + after)


def test_the_watch_outlasts_a_pull_held_by_the_broker() -> None:
    """A broker holds a pull for 15 s, and up to 5 s longer. Our own new pull returns a reset within seconds."""
    assert (OFFSET_WATCH_SECONDS, RESET_REPORT_SECONDS) == (25.0, 4.0)


def test_the_watch_ends_after_its_time(watch: OffsetWatch) -> None:
    assert not watch.needs_no_check(BEGAN + OFFSET_WATCH_SECONDS - 0.1)
    assert watch.needs_no_check(BEGAN + OFFSET_WATCH_SECONDS)


def test_a_stored_offset_that_is_ours_or_missing_may_be_replaced(watch: OffsetWatch, told: Told) -> None:
    assert look(watch, FOUND)
    assert look(watch, 12, 15, 11, 12)
    assert look(watch, None)
    assert (told.resets, told.overlaps) == ([], [])


def test_a_lower_offset_that_stays_counts_as_a_reset(watch: OffsetWatch, told: Told) -> None:
    """No pull of ours has returned it within that time. The reset is reported once."""
    assert not look(watch, 3)
    assert not look(watch, 3, after=RESET_REPORT_SECONDS - 0.1)
    assert told.resets == []
    assert not look(watch, 3, after=RESET_REPORT_SECONDS)
    assert told.resets == [3]
    assert not look(watch, 3, after=RESET_REPORT_SECONDS * 3)
    assert (told.resets, told.overlaps) == ([3], [])


def test_another_lower_offset_restarts_the_wait(watch: OffsetWatch, told: Told) -> None:
    assert not look(watch, 3)
    assert not look(watch, 5, after=RESET_REPORT_SECONDS)
    assert not look(watch, 5, after=2 * RESET_REPORT_SECONDS - 0.1)
    assert told.resets == []
    assert not look(watch, 5, after=2 * RESET_REPORT_SECONDS)
    assert told.resets == [5]


def test_a_lower_offset_extends_the_watch(watch: OffsetWatch, told: Told) -> None:
    """A lower offset at the last moment is judged like any other."""
    assert not look(watch, 3, after=OFFSET_WATCH_SECONDS - 0.1)
    assert not watch.needs_no_check(BEGAN + OFFSET_WATCH_SECONDS)
    assert not look(watch, 3, after=OFFSET_WATCH_SECONDS + RESET_REPORT_SECONDS)
    assert told.resets == [3]


@pytest.mark.parametrize("stored", [FOUND, 12])
def test_a_lower_offset_that_disappears_is_not_a_reset(watch: OffsetWatch, told: Told, stored: int) -> None:
    """Our commit, or a previous owner's, has replaced it."""
    assert not look(watch, 3)
    assert look(watch, stored, after=1.0)
    assert watch.needs_no_check(BEGAN + OFFSET_WATCH_SECONDS)
    assert not look(watch, 3, after=RESET_REPORT_SECONDS)
    assert told.resets == []


@pytest.mark.parametrize(("offset", "may_commit"), [(12, False), (13, False), (14, True)])
def test_a_higher_offset_of_a_previous_owner_is_not_replaced(
    watch: OffsetWatch, told: Told, offset: int, may_commit: bool
) -> None:
    """Messages that it finished after the acquisition are counted once."""
    assert look(watch, 13, offset) is may_commit
    assert look(watch, 13, offset) is may_commit
    assert told.overlaps == [3]
    assert not look(watch, 14, offset)
    assert told.overlaps == [3, 1]


def test_a_late_commit_of_a_previous_owner_is_not_a_reset(told: Told) -> None:
    """A previous owner that may still be alive may commit any lower offset."""
    watch = OffsetWatch(told, BEGAN + OFFSET_WATCH_SECONDS, None, 0, FOUND)
    assert look(watch, 3)
    assert look(watch, 3, after=RESET_REPORT_SECONDS)
    assert look(watch, 0, after=RESET_REPORT_SECONDS)
    assert (told.resets, told.overlaps) == ([], [])


def test_a_previous_owners_offset_is_not_below_the_one_at_the_acquisition(told: Told) -> None:
    watch = OffsetWatch(told, BEGAN + OFFSET_WATCH_SECONDS, None, FOUND, 12)
    assert look(watch, FOUND, 15, 12)
    assert not look(watch, FOUND - 1, 15, 12)


def test_a_rejected_commit_indicates_a_reset(watch: OffsetWatch, told: Told) -> None:
    """The reset waits for the next pull, and may be above the offset at the acquisition."""
    watch.is_reset = True
    assert not watch.needs_no_check(BEGAN + OFFSET_WATCH_SECONDS)
    assert not look(watch, 12)
    assert not look(watch, 12, after=RESET_REPORT_SECONDS)
    assert (told.resets, told.overlaps) == ([12], [])


def test_after_a_lost_connection_a_lower_offset_is_not_a_reset(watch: OffsetWatch, told: Told) -> None:
    """The broker may have restarted and lost offsets that were not on its disk."""
    assert not look(watch, 3)
    watch.is_reset = True
    watch.on_connection_lost()
    assert not watch.needs_no_check(BEGAN + OFFSET_WATCH_SECONDS)
    assert look(watch, 3, after=RESET_REPORT_SECONDS)
    assert look(watch, 0, after=RESET_REPORT_SECONDS)
    watch.may_have_lost_queue = False
    assert watch.needs_no_check(BEGAN)
    assert (told.resets, told.overlaps) == ([], [])


def test_a_reset_reported_by_a_pull_ends_the_watch(watch: OffsetWatch, told: Told) -> None:
    assert not look(watch, 3)
    watch.is_reset = watch.may_have_lost_queue = True
    watch.on_reset(3)
    assert watch.needs_no_check(BEGAN)
    watch.may_have_lost_queue = True
    assert not watch.needs_no_check(BEGAN + OFFSET_WATCH_SECONDS)
    assert look(watch, 0, 6, 4)
    assert look(watch, 5, 6, 4)
    assert (told.resets, told.overlaps) == ([], [2])


async def test_checks_before_pulls_have_a_pause_five_times_as_long(watch: OffsetWatch) -> None:
    """Otherwise a slow broker would slow down the pulls. A failed check allows no commit."""
    clock, errors, looks = ManualClock(), [RmqdError("not now")], 0

    async def slow() -> bool:
        nonlocal looks
        looks += 1
        clock.turn(1.0)
        if errors:
            raise errors.pop()
        return True

    assert not await watch.may_pull_commit(clock, slow)
    clock.turn(4.9)
    assert not await watch.may_pull_commit(clock, slow)
    assert looks == 1
    clock.turn(0.1)
    assert await watch.may_pull_commit(clock, slow)
    assert looks == 2


def test_a_member_that_may_have_lost_the_queue_always_checks(watch: OffsetWatch) -> None:
    watch.may_have_lost_queue = True
    assert not watch.needs_no_check(BEGAN + 10 * OFFSET_WATCH_SECONDS)
