"""Renders snapshots as Prometheus series.

Metrics are not registered and updated. Each scrape renders a snapshot, so a queue that moved to another member leaves
no series behind.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from rmqd.codes import RequestCode
from rmqd.consumer.circuit import CIRCUIT_STATES
from rmqd.consumer.health.causes import GROUP_CAUSES, STALL_CAUSES
from rmqd.consumer.stats.stats_snapshot import (
    BATCH_PHASES,
    DEAD_LETTER_CAUSES,
    FALL_CAUSES,
    FLOW_CONTROL_REASONS,
    GROUP_STATES,
    HANDLED_RESULTS,
    QUEUE_STATES,
    GroupSnapshot,
    QueueSnapshot,
    TopicSnapshot,
)
from rmqd.daemon.metrics import metric_catalogue as names
from rmqd.daemon.metrics.metric_totals import ProcessSnapshot
from rmqd.runtime.histogram import HistogramSnapshot
from rmqd.version import __version__


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """The daemon's own values. `workers` is None without workers."""

    config_hash: str
    reload_successful: bool
    reload_success_time: float
    workers: dict[str, int] | None = None
    worker_restarts: int = 0
    log_dropped: int = 0
    """Log lines that this process dropped, if it has workers. Workers count their own."""
    answering: Mapping[int, bool] = field(default_factory=dict)
    """Whether a worker responds, by its number."""


def render(process: ProcessSnapshot, facts: DaemonFacts, accept: str) -> tuple[bytes, str]:
    """Return the metrics and their content type, in the format that the Accept header requests."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(_Snapshot(process, facts))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the library fails if `version=` is not a number
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


class _Snapshot(Collector):
    def __init__(self, process: ProcessSnapshot, facts: DaemonFacts) -> None:
        self._process = process
        self._facts = facts

    def collect(self) -> Iterator[Family]:
        series = _Series()
        _daemon_series(series, self._facts)
        _client_series(series, self._process, self._facts)
        for group in self._process.groups:
            _group_series(series, group)
            for topic in group.topics:
                _topic_series(series, group, topic)
            for queue in group.queues:
                _queue_series(series, group, queue)
        return series.families()


class _Series:
    """The families of one scrape, in the order of the catalogue."""

    def __init__(self) -> None:
        self._families = {metric.name: _family(metric) for metric in names.CATALOGUE}

    def add(self, metric: names.Metric, labels: Iterable[str], value: float | None) -> None:
        """Add a sample. None, for a value that is not known yet, is skipped."""
        if value is None:
            return
        family = self._families[metric.name]
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        family.add_metric(list(labels), value)

    def add_histogram(self, metric: names.Metric, labels: Iterable[str], histogram: HistogramSnapshot) -> None:
        family = self._families[metric.name]
        assert isinstance(family, HistogramMetricFamily)
        buckets, below = [], 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), float(below)))
        family.add_metric(list(labels), buckets, histogram.sum)

    def families(self) -> Iterator[Family]:
        return iter(self._families.values())


def _family(metric: names.Metric) -> Family:
    if metric.kind == "histogram":
        return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def _daemon_series(series: _Series, facts: DaemonFacts) -> None:
    series.add(names.BUILD_INFO, (__version__, platform.python_version()), 1)
    series.add(names.CONFIG_INFO, (facts.config_hash,), 1)
    series.add(names.RELOAD_SUCCESSFUL, (), int(facts.reload_successful))
    series.add(names.RELOAD_SUCCESS_TIME, (), facts.reload_success_time)
    if facts.workers is not None:
        for state, count in facts.workers.items():
            series.add(names.WORKERS, (state,), count)
        for number, is_up in facts.answering.items():
            series.add(names.WORKER_UP, (str(number),), is_up)
        series.add(names.WORKER_RESTARTS, (), facts.worker_restarts)


def _client_series(series: _Series, process: ProcessSnapshot, facts: DaemonFacts) -> None:
    for code, histogram in process.client.requests.items():
        series.add_histogram(names.REQUEST_DURATION, (_code_name(code),), histogram)
    for (code, reason), count in process.client.request_failures.items():
        series.add(names.REQUEST_FAILURES, (_code_name(code), reason), count)
    for address, up in process.client.brokers_up.items():
        series.add(names.BROKER_UP, (address,), int(up))
    series.add(names.CORRUPT_FRAMES, (), process.client.corrupt_frames)
    series.add(names.DOUBTED_REPLIES, (), process.client.doubted_replies)
    series.add_histogram(names.LOOP_DELAY, (), process.loop_delay)
    series.add(names.LOG_DROPPED, (), process.log_dropped + facts.log_dropped)


def _group_series(series: _Series, group: GroupSnapshot) -> None:
    labels = (group.engine, group.name)
    for state in GROUP_STATES:
        series.add(names.GROUP_STATE, (*labels, state), int(group.state == state))
    series.add(names.GROUP_PAUSED, labels, int(group.paused))
    series.add(
        names.CIRCUIT_STATE, labels, None if group.circuit is None else CIRCUIT_STATES.index(group.circuit.state)
    )
    series.add(names.HANDLER_CONCURRENCY, labels, group.concurrency)
    series.add(names.REBALANCES, labels, group.rebalances)
    series.add(names.HANDOVER_TIMEOUTS, labels, group.handover_timeouts)
    series.add(names.COMMIT_FAILURES, labels, group.commit_failures)
    series.add(names.HANDLER_HUNG, labels, int(group.handler_hung))
    series.add(names.DEDUPLICATED, labels, sum(topic.deduplicated for topic in group.topics))
    if group.handler_processes is not None:
        series.add(names.HANDLER_PROCESSES, labels, group.handler_processes)
    for cause, count in group.handler_processes_lost.items():
        series.add(names.HANDLER_PROCESSES_LOST, (*labels, cause), count)
    for hook, count in group.hook_failures.items():
        series.add(names.HOOK_FAILURES, (*labels, hook), count)
    for hook, count in group.left_out_by_hooks.items():
        series.add(names.HOOK_LEFT_OUT, (*labels, hook), count)
    for result, count in group.trace_records.items():
        series.add(names.TRACE_RECORDS, (*labels, result), count)
    stalled = Counter(queue.stall.cause for queue in group.queues if queue.stall is not None)
    for cause in STALL_CAUSES:
        series.add(names.STALLED_QUEUES, (*labels, cause), stalled[cause])
    problems = Counter(problem.cause for problem in group.problems)
    for cause in GROUP_CAUSES:
        series.add(names.GROUP_PROBLEMS, (*labels, cause), problems[cause])
    for topic, count in group.assigned.items():
        series.add(names.ASSIGNED_QUEUES, (*labels, topic), count)
    if group.batches is not None:
        series.add_histogram(names.BATCH_DURATION, labels, group.batches.duration)
        for phase in BATCH_PHASES:
            series.add(names.BATCH_PHASE_SECONDS, (*labels, phase), group.batches.phase_seconds.get(phase, 0.0))
        series.add(names.LAST_BATCH, labels, group.batches.last_end)
        series.add(names.LOST_MESSAGES, labels, group.batches.lost)
        series.add(names.RETIRED_QUEUES, labels, group.batches.retired_queues)
        series.add(names.LATE_ROWS, labels, group.batches.late_rows)


def _topic_series(series: _Series, group: GroupSnapshot, topic: TopicSnapshot) -> None:
    labels = (group.engine, group.name, topic.topic, _flag(topic.is_retry))
    series.add(names.MESSAGES_RECEIVED, labels, topic.received)
    for result in HANDLED_RESULTS:
        series.add(names.MESSAGES_HANDLED, (*labels, result), topic.handled.get(result, 0))
    for reason in FLOW_CONTROL_REASONS:
        series.add(names.FLOW_CONTROL, (*labels, reason), topic.flow_control.get(reason, 0))
        series.add(names.FLOW_CONTROL_SECONDS, (*labels, reason), topic.held_seconds.get(reason, 0.0))
    for level, count in sorted(topic.retries.items()):
        series.add(names.RETRIES, (*labels, str(level)), count)
    for cause in DEAD_LETTER_CAUSES:
        series.add(names.DEAD_LETTERS, (*labels, cause), topic.dead_letters.get(cause, 0))
    series.add(names.MESSAGES_LOST, labels, topic.lost)
    series.add(names.INVALID_PAYLOADS, labels, topic.invalid_payloads)
    for cause in FALL_CAUSES:
        series.add(names.OFFSET_FALLS, (*labels, cause), topic.falls.get(cause, 0))
    for cause, count in topic.duplicates.items():
        series.add(names.DUPLICATES, (*labels, cause), count)
    for exception, count in topic.exceptions.items():
        series.add(names.HANDLER_EXCEPTIONS, (*labels, exception), count)
    series.add_histogram(names.HANDLER_DURATION, labels, topic.handler_duration)
    series.add_histogram(names.MESSAGE_AGE, labels, topic.message_age)


def _queue_series(series: _Series, group: GroupSnapshot, queue: QueueSnapshot) -> None:
    labels = (group.engine, group.name, queue.topic, _flag(queue.is_retry), queue.broker, queue.number)
    series.add(names.CACHED_MESSAGES, labels, queue.cached)
    series.add(names.INFLIGHT_MESSAGES, labels, queue.handling)
    series.add(names.CACHED_BYTES, labels, queue.cached_bytes)
    series.add(names.QUEUE_SPAN, labels, queue.span)
    series.add(names.LAG_MESSAGES, labels, queue.lag)
    series.add(names.LAG_SECONDS, labels, queue.lag_seconds)
    series.add(names.OFFSET_COMMITTED, labels, queue.committed)
    series.add(names.QUEUE_AT_SLAVE, labels, None if queue.pulled_from is None else int(queue.at_slave))
    series.add(names.OFFSET_POSITION, labels, queue.position)
    series.add(names.OFFSET_MAX, labels, queue.max)
    series.add(names.LAST_COMMIT, labels, queue.last_commit)
    for state in QUEUE_STATES:
        series.add(names.QUEUE_STATE, (*labels, state), int(queue.state == state))


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _code_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)
