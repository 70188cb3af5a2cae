"""The history of the daemon's groups."""

from __future__ import annotations

from dataclasses import replace

from rmqd.consumer.health.causes import Problem
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
from rmqd.daemon.group_history import STEP_SECONDS, HistoryRecorder
from rmqd.daemon.groups.group_engine import HostSnapshot, ProcessSnapshot
from rmqd.runtime.histogram import HistogramSnapshot
from tests.clock import ManualClock
from tests.daemon.fakes import EMPTY, client_snapshot, group_snapshot, queue_snapshot


def process(*groups: GroupSnapshot, worker: int | None = None) -> ProcessSnapshot:
    """A process with these groups."""
    return ProcessSnapshot(worker, 1, client_snapshot(), groups, EMPTY)


class Daemon:
    """A recorder, a clock, and groups that the test sets."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.view = HostSnapshot(())
        self.recorder = HistoryRecorder(self.clock, self._view)

    async def _view(self) -> HostSnapshot:
        return self.view

    def step(self, *groups: GroupSnapshot) -> None:
        """Advance the clock by one step, and record a point."""
        self.clock.turn(STEP_SECONDS)
        self.view = HostSnapshot((process(*groups),))
        self.recorder.add_points(self.view)


def slow(group: GroupSnapshot, calls: int) -> GroupSnapshot:
    """The group with so many calls of half a second or so."""
    (topic,) = group.topics
    return replace(group, topics=(replace(topic, handler_duration=HistogramSnapshot((0.1, 1.0), (0, calls, 0), 0.5)),))


def test_points_have_lag_and_throughput() -> None:
    """Rates are per second since the previous point. The first point has no rate."""
    daemon = Daemon()
    daemon.step(group_snapshot(received=100, queues=(queue_snapshot(0), queue_snapshot(1))))
    daemon.step(slow(group_snapshot(received=150, queues=(queue_snapshot(0),)), 10))
    document = daemon.recorder.points_document()
    mailer = document["groups"]["mailer"]
    assert [
        round(after - before, 3) for before, after in zip(document["times"], document["times"][1:], strict=False)
    ] == [STEP_SECONDS]
    assert (mailer["lag"], mailer["lag_seconds"]) == ([80, 40], [2.5, 2.5])
    assert (mailer["received"], mailer["handled"]) == ([None, 10], [None, 10])
    assert mailer["p50"] == [None, 0.55]


def test_findings_have_a_beginning_and_an_end() -> None:
    """Stalled queues with the same cause are one finding. Its evidence is updated, and its start is kept."""
    daemon = Daemon()
    stall = Problem("no_permission", "the topic may not be read", "let it be read")
    stalled = tuple(replace(queue_snapshot(number, state="stuck"), stall=stall) for number in (0, 1))
    mismatch = Problem("subscription_mismatch", "others subscribe to more", "make them equal")
    began = daemon.clock.wall() + STEP_SECONDS
    daemon.step(replace(group_snapshot(queues=stalled), problems=(mismatch,)))
    newer = replace(mismatch, evidence="two others subscribe to more")
    daemon.step(replace(group_snapshot(queues=stalled), problems=(newer,)))
    group, stands = daemon.recorder.findings(replace(group_snapshot(queues=stalled), problems=(newer,)))
    assert (group["cause"], group["evidence"], group["queues"]) == (mismatch.cause, newer.evidence, [])
    assert (stands["state"], stands["since"], stands["queues"]) == (
        "active",
        round(began, 3),
        ["orders@broker-a:0", "orders@broker-a:1"],
    )
    daemon.clock.turn(1.0)
    found = daemon.recorder.findings(group_snapshot(queues=(queue_snapshot(0),)))
    assert {(one["cause"], one["state"], one["until"]) for one in found} == {
        ("subscription_mismatch", "ended", round(daemon.clock.wall(), 3)),
        ("no_permission", "ended", round(daemon.clock.wall(), 3)),
    }
