"""Sums over worker processes: counters of all workers, gauges of running workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
from rmqd.daemon.group_history import HistoryRecorder
from rmqd.daemon.groups.group_engine import HostSnapshot, ProcessSnapshot, merge_processes
from rmqd.daemon.http.daemon_status import status_document
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.histogram import Histogram
from tests.daemon.fakes import ABOUT, client_snapshot, group_snapshot, queue_snapshot


def process(worker: int, *groups: GroupSnapshot) -> ProcessSnapshot:
    """A worker with these groups."""
    delays = Histogram((0.1,))
    delays.observe(0.05)
    return ProcessSnapshot(worker, 100 + worker, client_snapshot(f"client-{worker}"), groups, delays.snapshot())


def test_counters_and_queues_of_workers_are_merged() -> None:
    """Two workers of a group are one group with the queues of both."""
    one = process(1, group_snapshot(received=10, queues=(queue_snapshot(0),)))
    two = process(2, group_snapshot(received=5, queues=(queue_snapshot(1),)))
    merged = merge_processes([one, two])
    (group,) = merged.groups
    assert group.topics[0].received == 15
    assert group.topics[0].handled["acked"] == 15
    assert group.rebalances == 2
    assert [queue.queue for queue in group.queues] == [0, 1]
    assert group.assigned == {"orders": 2}
    assert merged.client.request_failures == {(11, "timeout"): 4}
    assert merged.client.corrupt_frames == 2
    assert merged.loop_delay.count == 2


def test_only_the_counters_of_a_dead_worker_are_kept() -> None:
    """Sums must not fall. The worker's queues, connections and state are removed."""
    dead = process(1, group_snapshot(received=10, queues=(queue_snapshot(0),)))
    dead = replace(dead, client=replace(dead.client, brokers_up={("broker-8", 0): False}))
    merged = merge_processes([process(2, group_snapshot(received=5))], [dead])
    (group,) = merged.groups
    assert group.topics[0].received == 15
    assert group.queues == ()
    assert group.state == "running"
    assert merged.client.brokers_up == {("broker-9", 0): True}
    assert merged.client.corrupt_frames == 2


def test_a_group_has_the_worst_state_of_its_workers() -> None:
    """One of three workers has failed."""
    failed = replace(group_snapshot(), state="failed", failure="boom", ready=False, not_ready_reason="boom")
    merged = merge_processes([process(1, group_snapshot()), process(2, failed), process(3, group_snapshot())])
    group = merged.groups[0]
    assert (group.state, group.failure, group.ready, group.not_ready_reason) == ("failed", "boom", False, "boom")


def test_a_queue_that_moves_is_shown_once() -> None:
    """Two workers may report the queue for a moment. The newer owner is shown."""
    old = process(1, group_snapshot(queues=(queue_snapshot(0, state="handling", since=1.0),)))
    new = process(2, group_snapshot(queues=(queue_snapshot(0, state="pulling", since=9.0),)))
    for order in ([old, new], [new, old]):
        assert [queue.state for queue in merge_processes(order).groups[0].queues] == ["pulling"]


async def test_a_queue_that_workers_pop_together_is_listed_once() -> None:
    """A shared queue has no worker; a queue of one worker has this worker."""
    shared = replace(queue_snapshot(-1), popped=True, cached=3)
    workers = [
        process(1, group_snapshot(queues=(shared, queue_snapshot(0)))),
        process(2, group_snapshot(queues=(shared,))),
    ]
    view = HostSnapshot(tuple(workers), workers={"running": 2})
    document = await status_document(view, HistoryRecorder(SystemClock(), view_of(view)), ABOUT)
    queues = [(one["queue"], one["worker"], one["cached"]) for one in document["groups"][0]["queues"]]
    assert queues == [(-1, None, 6), (0, 1, 7)]


def view_of(view: HostSnapshot) -> Callable[[], Awaitable[HostSnapshot]]:
    async def told() -> HostSnapshot:
        return view

    return told


def test_a_broker_that_one_worker_cannot_reach_is_down() -> None:
    one, two = process(1), process(2)
    two = replace(two, client=replace(two.client, brokers_up={("broker-9", 0): False}))
    assert merge_processes([one, two]).client.brokers_up == {("broker-9", 0): False}
