"""The verdict over a fault run tells what was lost, why something was handled again, and whether a commit fell."""

from __future__ import annotations

import pytest

from tests.nightly.campaigns.commits import Commit, History, LogLine, Place, micros
from tests.nightly.campaigns.fault_verdict import (
    BROKER_FORGOT,
    CUT_SHORT,
    FELL,
    NOT_COMMITTED,
    SAME_OWNERSHIP,
    SENT_BACK,
    STARTS,
    TWO_OWNERS,
    FaultVerdict,
    judge,
)
from tests.nightly.campaigns.faults import standstill
from tests.nightly.campaigns.verdict import STORED_TWICE
from tests.rocketmq.ledger import FAIL, FINISH, START, Entry

SECOND = 1_000_000
PLACE = Place("topic", "broker-a", 3)


def entry(event: str, member: str, at: int, *, offset: int = 5, times: int = 0) -> Entry:
    """A line about the one message; `at` is in seconds."""
    return Entry(event, "m1", "broker-a", 3, offset, member, at * SECOND, times)


def commit(member: str, offset: int, at: int) -> Commit:
    """A commit that was seen within the second before."""
    return Commit(member, PLACE, offset, (at - 1) * SECOND, at * SECOND)


def line(member: str, event: str, at: int, offset: int = 0) -> LogLine:
    """A line of a member's log."""
    return LogLine(member, event, str(PLACE), offset, at * SECOND)


def cause(verdict: FaultVerdict) -> str:
    """Of the one repetition."""
    [(found, count)] = verdict.repeated.items()
    assert count == 1
    return found


def test_what_was_not_finished_is_lost() -> None:
    """Whether it was begun or not."""
    entries = [entry(START, "a", 1)]

    verdict = judge({"m1", "m2"}, entries, [], [])

    assert verdict.lost == ["m1", "m2"]
    assert not verdict.passed
    assert judge({"m1"}, [*entries, entry(FINISH, "a", 2)], [], []).passed


@pytest.mark.parametrize(
    ("again", "commits", "expected"),
    [
        (entry(START, "a", 9, offset=6), [], STORED_TWICE),
        (entry(START, "b", 9, times=1), [], SENT_BACK),
        (entry(START, "b", 9), [], NOT_COMMITTED),
        (entry(START, "b", 9), [commit("a", 5, 3)], NOT_COMMITTED),
        (entry(START, "b", 9), [commit("a", 6, 3)], BROKER_FORGOT),
        (entry(START, "b", 9), [commit("b", 6, 10)], NOT_COMMITTED),
    ],
)
def test_repetitions_have_a_cause(again: Entry, commits: list[Commit], expected: str) -> None:
    """By where the message was, and what was committed by then."""
    entries = [entry(START, "a", 1), entry(FINISH, "a", 2), again, entry(FINISH, "b", 10)]

    verdict = judge({"m1"}, entries, commits, [line("b", STARTS, 4)])

    assert cause(verdict) == expected
    assert verdict.passed == (expected != SENT_BACK)


def test_a_handler_that_was_cut_short_is_no_surprise() -> None:
    """Its queue went to another member meanwhile."""
    entries = [entry(START, "a", 1), entry(FAIL, "a", 2), entry(START, "b", 9), entry(FINISH, "b", 10)]

    assert cause(judge({"m1"}, entries, [], [line("b", STARTS, 4)])) == CUT_SHORT


def test_within_one_ownership_nothing_may_come_again() -> None:
    """A member may handle a message again only if it acquired the queue in between."""
    entries = [entry(START, "a", 1), entry(FINISH, "a", 2), entry(START, "a", 9), entry(FINISH, "a", 10)]
    before = [line("a", STARTS, 0)]

    verdict = judge({"m1"}, entries, [], before)

    assert cause(verdict) == SAME_OWNERSHIP
    assert not verdict.passed
    assert cause(judge({"m1"}, entries, [], [*before, line("a", STARTS, 5)])) == NOT_COMMITTED


def test_two_owners_are_told_from_a_handover() -> None:
    """The second member had the queue before the first one began."""
    entries = [entry(START, "a", 4), entry(START, "b", 5), entry(FINISH, "a", 6), entry(FINISH, "b", 7)]

    assert cause(judge({"m1"}, entries, [], [line("b", STARTS, 1)])) == TWO_OWNERS


def test_a_commit_may_fall_only_where_the_log_says_why() -> None:
    """By the same member, in the same queue, at that moment."""
    commits = [commit("a", 9, 2), commit("b", 3, 3), commit("a", 4, 6)]

    verdict = judge(set(), [], commits, [line("b", FELL, 6), line("a", FELL, 3)])

    assert verdict.falls == ["a had committed 9 in topic@broker-a:3, then 4"]
    assert not verdict.passed
    assert judge(set(), [], commits, [line("a", FELL, 6)]).passed


def test_history_knows_what_was_committed_when() -> None:
    """By whichever member."""
    history = History([commit("a", 5, 2), commit("b", 3, 3), commit("b", 8, 4)])

    assert [history.committed("broker-a", 3, at * SECOND) for at in (1, 2, 3, 4, 9)] == [0, 5, 5, 8, 8]
    assert history.committed("broker-b", 3, 9 * SECOND) == 0


def test_a_standstill_has_the_ends_of_its_time_too() -> None:
    """Whoever handles nothing at all stood still for all of it."""
    entries = [entry(FINISH, "a", at) for at in (1, 12, 17, 30)]

    assert standstill(entries, "broker-a", 10, 20) == 5
    assert standstill(entries, "broker-b", 10, 20) == 10


def test_log_lines_have_their_moment() -> None:
    """As rmqd writes it, in UTC."""
    assert micros("1970-01-01T00:00:02.345Z") == 2_345_000
