"""What a stored offset that others may have moved is taken for, ahead of a commit."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.offsets.persistence import OFFSET_WATCH_SECONDS, RESET_REPORT_SECONDS, OffsetWatch

BEGAN = 1000.0  # monotonic
FOUND = 10  # at the take-over


@dataclass
class Told:
    """What the owner of the queue hears."""

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
    """That of an ownership which began at 10, after a former owner that had left."""
    return OffsetWatch(told, BEGAN + OFFSET_WATCH_SECONDS, None, FOUND, FOUND)


def look(watch: OffsetWatch, stored: int | None, offset: int = 15, *ours: int, after: float = 0.0) -> bool:
    """Whether `offset` may be committed over what is stored, where we have committed `ours`."""
    return watch.may_commit(stored, offset, frozenset(ours or {FOUND}), BEGAN + after)


def test_a_pull_that_nobody_hears_of_is_outlived() -> None:
    """A broker holds one for 15 s, and up to 5 s longer. Our own pull, which is new, tells within a few seconds."""
    assert (OFFSET_WATCH_SECONDS, RESET_REPORT_SECONDS) == (25.0, 4.0)


def test_the_look_ends_with_its_time(watch: OffsetWatch) -> None:
    assert not watch.is_over(BEGAN + OFFSET_WATCH_SECONDS - 0.1)
    assert watch.is_over(BEGAN + OFFSET_WATCH_SECONDS)


def test_what_nobody_has_moved_is_committed_over(watch: OffsetWatch, told: Told) -> None:
    assert look(watch, FOUND)
    assert look(watch, 12, 15, 11, 12)
    assert look(watch, None)
    assert (told.resets, told.overlaps) == ([], [])


def test_a_lower_offset_is_a_reset_once_it_has_stayed(watch: OffsetWatch, told: Told) -> None:
    """Our own pull would have brought it within that time otherwise. It is told once."""
    assert not look(watch, 3)
    assert not look(watch, 3, after=RESET_REPORT_SECONDS - 0.1)
    assert told.resets == []
    assert not look(watch, 3, after=RESET_REPORT_SECONDS)
    assert told.resets == [3]
    assert not look(watch, 3, after=RESET_REPORT_SECONDS * 3)
    assert (told.resets, told.overlaps) == ([3], [])


def test_a_reset_that_is_changed_is_waited_for_anew(watch: OffsetWatch, told: Told) -> None:
    assert not look(watch, 3)
    assert not look(watch, 5, after=RESET_REPORT_SECONDS)
    assert not look(watch, 5, after=2 * RESET_REPORT_SECONDS - 0.1)
    assert told.resets == []
    assert not look(watch, 5, after=2 * RESET_REPORT_SECONDS)
    assert told.resets == [5]


def test_a_lower_offset_is_looked_at_beyond_the_time(watch: OffsetWatch, told: Told) -> None:
    """It came in the last moment, and is judged as any other."""
    assert not look(watch, 3, after=OFFSET_WATCH_SECONDS - 0.1)
    assert not watch.is_over(BEGAN + OFFSET_WATCH_SECONDS)
    assert not look(watch, 3, after=OFFSET_WATCH_SECONDS + RESET_REPORT_SECONDS)
    assert told.resets == [3]


@pytest.mark.parametrize("stored", [FOUND, 12])
def test_a_lower_offset_that_is_gone_again_was_none(watch: OffsetWatch, told: Told, stored: int) -> None:
    """Ours has come over it, or a former owner's."""
    assert not look(watch, 3)
    assert look(watch, stored, after=1.0)
    assert watch.is_over(BEGAN + OFFSET_WATCH_SECONDS)
    assert not look(watch, 3, after=RESET_REPORT_SECONDS)
    assert told.resets == []


@pytest.mark.parametrize(("offset", "may_commit"), [(12, False), (13, False), (14, True)])
def test_a_former_owner_that_was_further_is_not_committed_over(
    watch: OffsetWatch, told: Told, offset: int, may_commit: bool
) -> None:
    """What it has finished beyond the take-over is counted once."""
    assert look(watch, 13, offset) is may_commit
    assert look(watch, 13, offset) is may_commit
    assert told.overlaps == [3]
    assert not look(watch, 14, offset)
    assert told.overlaps == [3, 1]


def test_a_late_commit_of_a_former_owner_is_no_reset(told: Told) -> None:
    """Where it was not known to be gone, nothing tells how low its last commit may be."""
    watch = OffsetWatch(told, BEGAN + OFFSET_WATCH_SECONDS, None, 0, FOUND)
    assert look(watch, 3)
    assert look(watch, 3, after=RESET_REPORT_SECONDS)
    assert look(watch, 0, after=RESET_REPORT_SECONDS)
    assert (told.resets, told.overlaps) == ([], [])


def test_the_lowest_offset_that_may_be_a_former_owners_is_that_of_the_take_over(told: Told) -> None:
    watch = OffsetWatch(told, BEGAN + OFFSET_WATCH_SECONDS, None, FOUND, 12)
    assert look(watch, FOUND, 15, 12)
    assert not look(watch, FOUND - 1, 15, 12)


def test_a_commit_that_was_not_taken_tells_of_a_reset(watch: OffsetWatch, told: Told) -> None:
    """It waits for the next pull, and may be higher than what was found."""
    watch.is_reset = True
    assert not watch.is_over(BEGAN + OFFSET_WATCH_SECONDS)
    assert not look(watch, 12)
    assert not look(watch, 12, after=RESET_REPORT_SECONDS)
    assert (told.resets, told.overlaps) == ([12], [])


def test_over_another_connection_nothing_lower_is_a_reset(watch: OffsetWatch, told: Told) -> None:
    """The broker may have been restarted, and have lost what was not on its disk."""
    assert not look(watch, 3)
    watch.is_reset = True
    watch.on_connection_lost()
    assert not watch.is_over(BEGAN + OFFSET_WATCH_SECONDS)
    assert look(watch, 3, after=RESET_REPORT_SECONDS)
    assert look(watch, 0, after=RESET_REPORT_SECONDS)
    watch.may_have_lost_queue = False
    assert watch.is_over(BEGAN)
    assert (told.resets, told.overlaps) == ([], [])


def test_a_reset_that_came_by_a_pull_ends_the_look(watch: OffsetWatch, told: Told) -> None:
    assert not look(watch, 3)
    watch.is_reset = watch.may_have_lost_queue = True
    watch.on_reset(3)
    assert watch.is_over(BEGAN)
    watch.may_have_lost_queue = True
    assert not watch.is_over(BEGAN + OFFSET_WATCH_SECONDS)
    assert look(watch, 0, 6, 4)
    assert look(watch, 5, 6, 4)
    assert (told.resets, told.overlaps) == ([], [2])


def test_a_member_that_may_have_lost_the_queue_looks_at_any_time(watch: OffsetWatch) -> None:
    watch.may_have_lost_queue = True
    assert not watch.is_over(BEGAN + 10 * OFFSET_WATCH_SECONDS)
