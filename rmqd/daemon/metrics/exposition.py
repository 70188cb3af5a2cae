"""Renders snapshots as Prometheus series.

Metrics are not registered and updated. Each scrape renders a snapshot, so a queue that moved to another member leaves
no series behind. The metrics are declared at the fields of the snapshots (`runtime.figures`), and in `DaemonFacts`.
docs/metrics.md lists them.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from rmqd.client.remoting.pending import ClientSnapshot
from rmqd.consumer.stats.stats_snapshot import BatchesSnapshot, GroupSnapshot, QueueSnapshot, TopicSnapshot
from rmqd.daemon.metrics.metric_totals import ProcessSnapshot
from rmqd.runtime.figures import Metric, counter, figures_of, gauge
from rmqd.runtime.histogram import HistogramSnapshot
from rmqd.version import __version__


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """The daemon's own values. `workers` is None without workers."""

    config_hash: str = gauge(
        "rmqd_config_info",
        "Always 1; the label is a hash of the current configuration without its secrets.",
        by="hash",
        read=lambda facts: {facts.config_hash: 1},
    )
    reload_successful: bool = gauge(
        "rmqd_config_last_reload_successful", "1 if the last load or reload of the configuration succeeded, else 0."
    )
    reload_success_time: float = gauge(
        "rmqd_config_last_reload_success_timestamp_seconds", "When a configuration was last applied (Unix time)."
    )
    workers: Mapping[str, int] | None = gauge(
        "rmqd_workers",
        "Worker processes by state: running, restarting. Absent without --workers.",
        by="state",
        default=None,
    )
    worker_restarts: int = counter(
        "rmqd_worker_restarts_total",
        "Workers replaced because they had died.",
        read=lambda facts: None if facts.workers is None else facts.worker_restarts,
    )
    log_dropped: int = 0
    """Log lines that this process dropped, if it has workers. Workers count their own."""
    answering: Mapping[int, bool] = gauge(
        "rmqd_worker_up",
        "1 if a worker responds; 0 if not, and its other values are old.",
        by="worker",
        default_factory=dict,
    )
    """Whether a worker responds, by its number."""
    version: str = gauge(
        "rmqd_build_info",
        "Always 1; the labels say which rmqd and which Python run.",
        by="version python",
        read=lambda facts: {(facts.version, platform.python_version()): 1},
        default=__version__,
    )


_GROUP: Final = ("engine", "group")
_TOPIC: Final = (*_GROUP, "topic", "is_retry")
# The snapshots with metrics, and the labels of their series.
_LABELS: Final[Mapping[type, tuple[str, ...]]] = {
    DaemonFacts: (),
    ClientSnapshot: (),
    ProcessSnapshot: (),
    GroupSnapshot: _GROUP,
    BatchesSnapshot: _GROUP,
    TopicSnapshot: _TOPIC,
    QueueSnapshot: (*_TOPIC, "broker", "queue"),
}


class FamilySpec(NamedTuple):
    """A metric, the field that declares it, and all its labels."""

    metric: Metric
    field: str
    labels: tuple[str, ...]


def _specs(snapshot: type) -> Iterator[FamilySpec]:
    for name, figure in figures_of(snapshot).items():
        if figure.metric is not None:
            yield FamilySpec(figure.metric, name, (*_LABELS[snapshot], *figure.metric.by))


CATALOGUE: Final = {spec.metric.name: spec for snapshot in _LABELS for spec in _specs(snapshot)}
"""Every metric that the daemon exports, by name."""

Labelled = Sequence[tuple[tuple[str, ...], object]]
"""Snapshots of one class, each with the values of its labels."""


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
        self._snapshots = _labelled(process, facts)

    def collect(self) -> Iterator[Family]:
        """Yield one family after the other, so that only one is in memory."""
        for snapshot, labelled in self._snapshots.items():
            for spec in _specs(snapshot):
                yield _family(spec, labelled)


def _labelled(process: ProcessSnapshot, facts: DaemonFacts) -> dict[type, Labelled]:
    groups = [((group.engine, group.name), group) for group in process.groups]
    return {
        DaemonFacts: [((), facts)],
        ClientSnapshot: [((), process.client)],
        ProcessSnapshot: [((), replace(process, log_dropped=process.log_dropped + facts.log_dropped))],
        GroupSnapshot: groups,
        BatchesSnapshot: [(labels, group.batches) for labels, group in groups if group.batches is not None],
        TopicSnapshot: [
            ((*labels, topic.topic, _flag(topic.is_retry)), topic) for labels, group in groups for topic in group.topics
        ],
        QueueSnapshot: [
            ((*labels, queue.topic, _flag(queue.is_retry), queue.broker, queue.number), queue)
            for labels, group in groups
            for queue in group.queues
        ],
    }


def _family(spec: FamilySpec, snapshots: Labelled) -> Family:
    metric = spec.metric
    if metric.kind == "histogram":
        histograms = HistogramMetricFamily(metric.name, metric.help, labels=spec.labels)
        for labels, value in _values(spec, snapshots):
            histograms.add_metric(labels, _buckets(value), value.sum)
        return histograms
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=spec.labels)
    for labels, value in _values(spec, snapshots):
        family.add_metric(labels, value)
    return family


def _values(spec: FamilySpec, snapshots: Labelled) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the labels and the value of each series. A value that is not known has no series."""
    metric, name = spec.metric, spec.field
    for labels, snapshot in snapshots:
        value = metric.value(snapshot, name)
        if value is None:
            continue
        if not metric.by:
            yield labels, value
            continue
        for key, number in value.items():
            yield (*labels, *(map(str, key) if isinstance(key, tuple) else (str(key),))), number


def _buckets(histogram: HistogramSnapshot) -> list[tuple[str, float]]:
    """Return the number of values up to each bound."""
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))


def _flag(value: bool) -> str:
    return "true" if value else "false"
