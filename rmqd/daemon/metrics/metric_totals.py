"""Sums snapshots over restarts of a group, and over worker processes.

A consumer that ended, or a worker that died, loses its counters. An exported counter must never decrease, so their last
counters are kept and added to the current ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from typing import TypeVar

from rmqd.client.remoting.pending import ClientSnapshot
from rmqd.consumer.circuit import CIRCUIT_STATES
from rmqd.consumer.stats.stats_snapshot import (
    MOST_ERRORS,
    MOST_MEMBERS,
    MOST_REASONS,
    OTHER_REASONS,
    QUEUE_STATES,
    BatchesSnapshot,
    GroupSnapshot,
    HandlerRates,
    QueueSnapshot,
    TopicSnapshot,
)
from rmqd.runtime.histogram import HistogramSnapshot

_Key = TypeVar("_Key")
_Number = TypeVar("_Number", int, float)

# If a daemon has several members of a group, the group's state is the member's state that needs attention most.
_STATE_PRECEDENCE = ("failed", "starting", "draining", "running", "stopped")


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """The groups of one process, and the client that they share. `worker` is None without workers."""

    worker: int | None
    pid: int
    client: ClientSnapshot
    groups: tuple[GroupSnapshot, ...]
    loop_delay: HistogramSnapshot
    log_dropped: int = 0
    """Log lines that were dropped, because the rate limit was exceeded or the log is not read."""


def retired(process: ProcessSnapshot) -> ProcessSnapshot:
    """Return the counters of a process that ended, without queues and connections."""
    groups = tuple(retired_group(group) for group in process.groups)
    return replace(process, client=replace(process.client, brokers_up={}, refused=()), groups=groups)


def retired_group(group: GroupSnapshot) -> GroupSnapshot:
    """Return the counters of a consumer that ended."""
    shown = replace(group, state="stopped", queues=(), assigned={}, paused=False, pauses=(), problems=())
    shown = replace(shown, rates=HandlerRates(), members=(), member_count=0, handler_processes=None, circuit=None)
    shown = replace(shown, concurrency=None)
    return replace(shown, ready=True, not_ready_reason=None)


def add_counters(group: GroupSnapshot, past: GroupSnapshot | None) -> GroupSnapshot:
    """Return the group's snapshot plus the counters of its past, unless they belong to another engine."""
    if past is None or past.engine != group.engine:
        return group
    return replace(
        group,
        topics=add_topics(group.topics, past.topics),
        rebalances=group.rebalances + past.rebalances,
        handover_timeouts=group.handover_timeouts + past.handover_timeouts,
        commit_failures=group.commit_failures + past.commit_failures,
        hook_failures=_add(group.hook_failures, past.hook_failures),
        left_out_by_hooks=_add(group.left_out_by_hooks, past.left_out_by_hooks),
        handler_processes_lost=_add(group.handler_processes_lost, past.handler_processes_lost),
        batches=_add_batches(group.batches, past.batches),
        trace_records=_add(group.trace_records, past.trace_records),
    )


def merge_processes(living: Iterable[ProcessSnapshot], past: Iterable[ProcessSnapshot] = ()) -> ProcessSnapshot:
    """Merge several processes into one snapshot. Raises ValueError if there is none."""
    processes, gone = list(living), list(past)
    merged = [*processes, *gone]
    if not merged:
        raise ValueError("no process has a snapshot")
    groups = [
        _merge_group(
            [group for process in processes for group in process.groups if group.name == name],
            [group for process in gone for group in process.groups if group.name == name],
        )
        for name in dict.fromkeys(group.name for process in processes for group in process.groups)
    ]
    delays = [process.loop_delay for process in merged]
    return replace(
        merged[0],
        client=merge_clients([process.client for process in merged]),
        groups=tuple(groups),
        loop_delay=_merge_histograms(delays),
        log_dropped=sum(process.log_dropped for process in merged),
    )


def _merge_group(living: list[GroupSnapshot], past: list[GroupSnapshot]) -> GroupSnapshot:
    group = min(living, key=lambda one: _STATE_PRECEDENCE.index(one.state))
    assigned: dict[str, int] = {}
    for one in living:
        for topic, count in one.assigned.items():
            assigned[topic] = assigned.get(topic, 0) + count
    unready = next((one for one in living if not one.ready), None)
    merged = replace(
        group,
        paused=any(one.paused for one in living),
        pauses=tuple(dict.fromkeys(scope for one in living for scope in one.pauses)),
        ready=unready is None,
        not_ready_reason=unready.not_ready_reason if unready else None,
        queues=_each_once(queue for one in living for queue in one.queues),
        assigned=assigned,
        handler_hung=any(one.handler_hung for one in living),
        handler_processes=_sum_of_known(one.handler_processes for one in living),
        rates=_add_rates(one.rates for one in living),
        concurrency=_sum_of_known(one.concurrency for one in living),
        circuit=max(
            (one.circuit for one in living if one.circuit is not None),
            key=lambda circuit: CIRCUIT_STATES.index(circuit.state),
            default=None,
        ),
        problems=tuple(dict.fromkeys(problem for one in living for problem in one.problems)),
        members=tuple(sorted({member for one in living for member in one.members})[:MOST_MEMBERS]),
        member_count=max(one.member_count for one in living),
    )
    for other in [*(one for one in living if one is not group), *past]:
        merged = add_counters(merged, other)
    return merged


def _sum_of_known(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _each_once(queues: Iterable[QueueSnapshot]) -> tuple[QueueSnapshot, ...]:
    """Return each queue once. Two workers may both show a queue while it moves between them, and all workers pop the
    same queues.
    """
    latest: dict[tuple[str, bool, str, int], QueueSnapshot] = {}
    for queue in queues:
        key = (queue.topic, queue.is_retry, queue.broker, queue.queue)
        if key in latest and queue.popped and latest[key].popped:
            latest[key] = _popped_together(latest[key], queue)
        elif key not in latest or queue.since > latest[key].since:
            latest[key] = queue
    return tuple(latest.values())


def _popped_together(one: QueueSnapshot, other: QueueSnapshot) -> QueueSnapshot:
    """Merge a queue that two workers pop. Its state is the first of both states in QUEUE_STATES."""
    shown = min(one, other, key=lambda queue: QUEUE_STATES.index(queue.state))
    return replace(
        shown,
        lag=max((lag for lag in (one.lag, other.lag) if lag is not None), default=None),
        lag_seconds=max((age for age in (one.lag_seconds, other.lag_seconds) if age is not None), default=None),
        cached=one.cached + other.cached,
        handling=one.handling + other.handling,
        cached_bytes=one.cached_bytes + other.cached_bytes,
        stall=one.stall or other.stall,
    )


def add_client_counters(client: ClientSnapshot, past: ClientSnapshot | None) -> ClientSnapshot:
    """Return the client's snapshot plus the counters of the client that it replaced."""
    if past is None:
        return client
    return replace(
        client,
        requests=_add_histograms(client.requests, past.requests),
        request_failures=_add(client.request_failures, past.request_failures),
        corrupt_frames=client.corrupt_frames + past.corrupt_frames,
        doubted_replies=client.doubted_replies + past.doubted_replies,
    )


def merge_clients(clients: list[ClientSnapshot]) -> ClientSnapshot:
    """Merge several clients into one snapshot, with the id of the first."""
    merged = clients[0]
    for other in clients[1:]:
        brokers_up = dict(merged.brokers_up)
        for address, up in other.brokers_up.items():
            # A broker counts as up only if all processes reach it.
            brokers_up[address] = brokers_up.get(address, True) and up
        refused = tuple(dict.fromkeys((*merged.refused, *other.refused)))
        merged = replace(add_client_counters(merged, other), brokers_up=brokers_up, refused=refused)
    return merged


def _add_batches(these: BatchesSnapshot | None, those: BatchesSnapshot | None) -> BatchesSnapshot | None:
    if these is None or those is None:
        return these or those
    return BatchesSnapshot(
        duration=these.duration.merge(those.duration),
        phase_seconds=_add(these.phase_seconds, those.phase_seconds),
        last_end=max((end for end in (these.last_end, those.last_end) if end is not None), default=None),
        lost=these.lost + those.lost,
        retired_queues=these.retired_queues + those.retired_queues,
        late_rows=these.late_rows + those.late_rows,
    )


def add_topics(these: tuple[TopicSnapshot, ...], those: tuple[TopicSnapshot, ...]) -> tuple[TopicSnapshot, ...]:
    """Return the topics of both, with the counters of common topics summed."""
    topics = {(topic.topic, topic.is_retry): topic for topic in these}
    for topic in those:
        key = (topic.topic, topic.is_retry)
        topics[key] = _add_topic(topics[key], topic) if key in topics else topic
    return tuple(topics.values())


def _add_rates(rates: Iterable[HandlerRates]) -> HandlerRates:
    columns = zip(*(astuple(one) for one in rates), strict=True)
    return HandlerRates(*(sum(column) for column in columns))


def _add_topic(one: TopicSnapshot, other: TopicSnapshot) -> TopicSnapshot:
    return replace(
        one,
        received=one.received + other.received,
        handled=_add(one.handled, other.handled),
        flow_control=_add(one.flow_control, other.flow_control),
        held_seconds=_add(one.held_seconds, other.held_seconds),
        retries=_add(one.retries, other.retries),
        dead_letters=_add(one.dead_letters, other.dead_letters),
        falls=_add(one.falls, other.falls),
        lost=one.lost + other.lost,
        deduplicated=one.deduplicated + other.deduplicated,
        invalid_payloads=one.invalid_payloads + other.invalid_payloads,
        handler_duration=one.handler_duration.merge(other.handler_duration),
        message_age=one.message_age.merge(other.message_age),
        duplicates=_add(one.duplicates, other.duplicates),
        exceptions=_add(one.exceptions, other.exceptions),
        errors=tuple(sorted((*one.errors, *other.errors), key=lambda error: error.at)[-MOST_ERRORS:]),
        dead_letter_reasons=_add_reasons(one.dead_letter_reasons, other.dead_letter_reasons),
    )


def _add_reasons(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Return the most frequent reasons of both; the rest counts as OTHER_REASONS."""
    total = _add(one, other)
    rest = total.pop(OTHER_REASONS, 0)
    ordered = sorted(total, key=total.__getitem__, reverse=True)
    rest += sum(total[reason] for reason in ordered[MOST_REASONS:])
    kept = {reason: total[reason] for reason in ordered[:MOST_REASONS]}
    return kept | ({OTHER_REASONS: rest} if rest else {})


def _add(one: dict[_Key, _Number], other: dict[_Key, _Number]) -> dict[_Key, _Number]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


def _add_histograms(
    one: dict[int, HistogramSnapshot], other: dict[int, HistogramSnapshot]
) -> dict[int, HistogramSnapshot]:
    total = dict(one)
    for code, histogram in other.items():
        total[code] = total[code].merge(histogram) if code in total else histogram
    return total


def _merge_histograms(histograms: list[HistogramSnapshot]) -> HistogramSnapshot:
    merged = histograms[0]
    for other in histograms[1:]:
        merged = merged.merge(other)
    return merged
