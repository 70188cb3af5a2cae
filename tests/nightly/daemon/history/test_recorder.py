"""The history of the daemon's groups.

The core of these tests is in tests/daemon/history/test_recorder.py.
"""

from __future__ import annotations

import tracemalloc

from rmqd.daemon.group_history import POINTS, STEP_SECONDS, GroupSeries, GroupTotals
from rmqd.daemon.groups.group_engine import HostSnapshot
from tests.daemon.fakes import group_snapshot, queue_snapshot
from tests.daemon.history.test_recorder import Daemon, slow


def test_an_hour_is_kept_in_the_same_memory() -> None:
    """New points replace the oldest ones. The history of a removed group is discarded."""
    daemon = Daemon()
    for number in range(POINTS + 7):
        daemon.step(group_snapshot(received=number), group_snapshot("audit", received=number))
    document = daemon.recorder.points_document()
    assert len(document["times"]) == POINTS
    assert document["times"] == sorted(document["times"])
    assert document["groups"]["mailer"]["received"] == [1 / STEP_SECONDS] * POINTS
    daemon.step(group_snapshot("audit"))
    assert list(daemon.recorder.points_document()["groups"]) == ["audit"]


def test_a_later_group_has_no_values_for_earlier_times() -> None:
    """A process that does not respond leaves a gap, not a zero."""
    daemon = Daemon()
    daemon.step(group_snapshot("audit"))
    daemon.step(group_snapshot("audit"), group_snapshot(queues=(queue_snapshot(0),)))
    daemon.recorder.add_points(HostSnapshot((), missing=("worker 1 is being restarted",)))
    daemon.step(group_snapshot("audit"), group_snapshot(queues=(queue_snapshot(0),)))
    assert daemon.recorder.points_document()["groups"]["mailer"]["lag"] == [None, 40, None, 40]


def test_falling_counters_give_no_negative_rates() -> None:
    """Counters fall when a group moves to the other engine."""
    daemon = Daemon()
    daemon.step(group_snapshot(received=500))
    daemon.step(group_snapshot(received=5))
    assert daemon.recorder.points_document()["groups"]["mailer"]["received"] == [None, 0]


def test_memory_of_a_group_is_bounded() -> None:
    """The limit is 60 KB of points for any running time."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        series = GroupSeries()
        for number in range(3 * POINTS):
            series.put(number, {"lag": float(number)})
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < 60_000
    assert series.column("lag", range(3 * POINTS - 1, 3 * POINTS)) == [3 * POINTS - 1]


def test_a_document_can_be_limited_to_groups_and_newer_points() -> None:
    daemon = Daemon()
    for received in (1, 2, 3):
        daemon.step(group_snapshot(received=received), group_snapshot("audit"))
    times = daemon.recorder.points_document()["times"]
    newer = daemon.recorder.points_document({"audit"}, times[1])
    assert newer["times"] == times[2:]
    assert {name: len(columns["lag"]) for name, columns in newer["groups"].items()} == {"audit": 1}


def test_recent_rates_cover_the_last_seconds() -> None:
    """Rates cover ten seconds or a little more. Latency covers the last minute, without earlier slow calls."""
    daemon = Daemon()
    for received in range(0, 2000, 100):
        daemon.step(slow(group_snapshot(received=received), 5))
    now = slow(group_snapshot(received=1950), 25)
    daemon.clock.turn(2.5)
    recent = daemon.recorder.recent_activity("mailer", GroupTotals.of(now))
    assert recent.seconds == 12.5
    assert recent.rates["received"] == (1950 - 1700) / 12.5
    assert recent.latency is not None
    assert recent.latency.count == 20
