"""The verdict over a fault run: lost messages, causes of repetitions, and commits that fell."""

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
    """Return an entry of the only message. `at` is in seconds."""
    return Entry(event, "m1", "broker-a", 3, offset, member, at * SECOND, times)


def commit(member: str, offset: int, at: int) -> Commit:
    """Return a commit seen within the second before `at`."""
    return Commit(member, PLACE, offset, (at - 1) * SECOND, at * SECOND)


def line(member: str, event: str, at: int, offset: int = 0) -> LogLine:
    """Return a line of a member's log."""
    return LogLine(member, event, str(PLACE), offset, at * SECOND)


def cause(verdict: FaultVerdict) -> str:
    """Return the cause of the only repetition."""
    [(found, count)] = verdict.repeated.items()
    assert count == 1
    return found


def test_unfinished_messages_are_lost() -> None:
    """A begun message counts as lost, too."""
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
def test_causes_of_repetitions(again: Entry, commits: list[Commit], expected: str) -> None:
    """The cause depends on the message's offset and on the commits until then."""
    entries = [entry(START, "a", 1), entry(FINISH, "a", 2), again, entry(FINISH, "b", 10)]

    verdict = judge({"m1"}, entries, commits, [line("b", STARTS, 4)])

    assert cause(verdict) == expected
    assert verdict.passed == (expected != SENT_BACK)


def test_a_handler_cut_short_by_a_hand_over_explains_a_repetition() -> None:
    """Its queue moved to another member meanwhile."""
    entries = [entry(START, "a", 1), entry(FAIL, "a", 2), entry(START, "b", 9), entry(FINISH, "b", 10)]

    assert cause(judge({"m1"}, entries, [], [line("b", STARTS, 4)])) == CUT_SHORT


def test_a_repetition_within_one_ownership_fails_the_run() -> None:
    """A member may handle a message again only if it acquired the queue in between."""
    entries = [entry(START, "a", 1), entry(FINISH, "a", 2), entry(START, "a", 9), entry(FINISH, "a", 10)]
    before = [line("a", STARTS, 0)]

    verdict = judge({"m1"}, entries, [], before)

    assert cause(verdict) == SAME_OWNERSHIP
    assert not verdict.passed
    assert cause(judge({"m1"}, entries, [], [*before, line("a", STARTS, 5)])) == NOT_COMMITTED


def test_two_owners_are_distinguished_from_a_hand_over() -> None:
    """The second member acquired the queue before the first one began the message."""
    entries = [entry(START, "a", 4), entry(START, "b", 5), entry(FINISH, "a", 6), entry(FINISH, "b", 7)]

    assert cause(judge({"m1"}, entries, [], [line("b", STARTS, 1)])) == TWO_OWNERS


def test_a_commit_may_fall_only_if_the_log_explains_it() -> None:
    """The log line must have the same member, queue and moment."""
    commits = [commit("a", 9, 2), commit("b", 3, 3), commit("a", 4, 6)]

    verdict = judge(set(), [], commits, [line("b", FELL, 6), line("a", FELL, 3)])

    assert verdict.falls == ["a had committed 9 in topic@broker-a:3, then 4"]
    assert not verdict.passed
    assert judge(set(), [], commits, [line("a", FELL, 6)]).passed


def test_history_returns_the_highest_commit_at_a_time() -> None:
    """Commits of all members count."""
    history = History([commit("a", 5, 2), commit("b", 3, 3), commit("b", 8, 4)])

    assert [history.committed("broker-a", 3, at * SECOND) for at in (1, 2, 3, 4, 9)] == [0, 5, 5, 8, 8]
    assert history.committed("broker-b", 3, 9 * SECOND) == 0


def test_a_standstill_includes_the_ends_of_its_period() -> None:
    """Without finished messages a broker has a standstill of the whole period."""
    entries = [entry(FINISH, "a", at) for at in (1, 12, 17, 30)]

    assert standstill(entries, "broker-a", 10, 20) == 5
    assert standstill(entries, "broker-b", 10, 20) == 10


def test_log_timestamps_are_read_as_utc() -> None:
    assert micros("1970-01-01T00:00:02.345Z") == 2_345_000
