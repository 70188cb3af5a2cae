"""Merges snapshots of several worker processes, and of the ended consumers and processes before them.

The rules are declared at the fields of the snapshots (`runtime.figures`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from rmqd.client.remoting.pending import ClientSnapshot
from rmqd.consumer.stats.stats_snapshot import QUEUE_STATES, GroupSnapshot, QueueSnapshot
from rmqd.runtime.figures import add_counters, counter, histogram, merged
from rmqd.runtime.histogram import HistogramSnapshot

# If a daemon has several members of a group, the group's state is the member's state that needs attention most.
_STATE_PRECEDENCE = ("failed", "starting", "draining", "running", "stopped")


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """The groups of one process, and the client that they share. `worker` is None without workers."""

    worker: int | None
    pid: int
    client: ClientSnapshot
    groups: tuple[GroupSnapshot, ...]
    loop_delay: HistogramSnapshot = histogram(
        "rmqd_event_loop_lag_seconds", "How late the event loop ran a timer, measured once a second."
    )
    log_dropped: int = counter(
        "rmqd_log_dropped_total",
        "Log lines that were dropped, because the log is not read or the rate limit was exceeded.",
    )


def merge_processes(living: Iterable[ProcessSnapshot], past: Iterable[ProcessSnapshot] = ()) -> ProcessSnapshot:
    """Merge several processes into one snapshot, with the counters of ended ones. Raises ValueError if none lives."""
    processes, ended = list(living), list(past)
    if not processes:
        raise ValueError("no process has a snapshot")
    groups: dict[str, GroupSnapshot] = {}
    for group in (group for process in processes for group in process.groups):
        groups[group.name] = _merge_members(groups[group.name], group) if group.name in groups else group
    for group in (group for process in ended for group in process.groups if group.name in groups):
        groups[group.name] = add_past(groups[group.name], group)
    client = reduce(merged, (process.client for process in processes))
    return replace(
        reduce(merged, [*processes, *ended]),
        client=reduce(add_counters, (process.client for process in ended), client),
        groups=tuple(replace(group, queues=_each_queue_once(group.queues)) for group in groups.values()),
    )


def add_past(group: GroupSnapshot, past: GroupSnapshot | None) -> GroupSnapshot:
    """Return the group plus the counters of an ended consumer, unless they belong to another engine."""
    return group if past is None or past.engine != group.engine else add_counters(group, past)


def _merge_members(one: GroupSnapshot, other: GroupSnapshot) -> GroupSnapshot:
    base = min(one, other, key=lambda member: _STATE_PRECEDENCE.index(member.state))
    return merged(one, other, base, counters=one.engine == other.engine)


def _each_queue_once(queues: Iterable[QueueSnapshot]) -> tuple[QueueSnapshot, ...]:
    """Return each queue once. Two workers may both show a queue while it moves between them, and all workers pop the
    same queues. The state of a popped queue is the first of the workers' states in QUEUE_STATES.
    """
    latest: dict[tuple[str, bool, str, int], QueueSnapshot] = {}
    for queue in queues:
        key = (queue.topic, queue.is_retry, queue.broker, queue.queue)
        before = latest.get(key)
        if before is not None and before.popped and queue.popped:
            latest[key] = merged(before, queue, min(before, queue, key=lambda one: QUEUE_STATES.index(one.state)))
        elif before is None or queue.since > before.since:
            latest[key] = queue
    return tuple(latest.values())
