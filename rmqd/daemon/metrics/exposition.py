"""Renders snapshots as Prometheus series.

Metrics are not registered and updated. Each scrape renders a snapshot, so a queue that moved to another member leaves
no series behind. The metrics are declared at the fields of the snapshots (`runtime.figures`). docs/metrics.md lists
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from rmqd.client.remoting.pending import ClientSnapshot
from rmqd.consumer.stats.stats_snapshot import BatchesSnapshot, GroupSnapshot, QueueSnapshot, TopicSnapshot
from rmqd.daemon.groups.group_engine import HostView, ProcessSnapshot, merge_processes
from rmqd.daemon.http.daemon_status import DaemonAbout
from rmqd.runtime.figures import Metric, figures_of
from rmqd.runtime.histogram import HistogramSnapshot
from rmqd.runtime.logs.log_writer import lines_dropped

_GROUP: Final = ("engine", "group")
_TOPIC: Final = (*_GROUP, "topic", "is_retry")
# The snapshots with metrics, and the labels of their series.
_LABELS: Final[Mapping[type, tuple[str, ...]]] = {
    DaemonAbout: (),
    HostView: (),
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


def render(view: HostView, about: DaemonAbout, accept: str) -> tuple[bytes, str]:
    """Return the metrics and their content type, in the format that the Accept header requests.

    Raises ValueError if the view has no process.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(_Snapshot(_labelled(view, about)))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the library fails if `version=` is not a number
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


class _Snapshot(Collector):
    def __init__(self, snapshots: Mapping[type, Labelled]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[Family]:
        """Yield one family after the other, so that only one is in memory."""
        for snapshot, labelled in self._snapshots.items():
            for spec in _specs(snapshot):
                yield _family(spec, labelled)


def _labelled(view: HostView, about: DaemonAbout) -> dict[type, Labelled]:
    process = merge_processes(view.processes, view.past)
    if view.workers is not None:
        process = replace(process, log_dropped=process.log_dropped + lines_dropped())  # this process logs, too
    groups = [((group.engine, group.name), group) for group in process.groups]
    return {
        DaemonAbout: [((), about)],
        HostView: [((), view)],
        ClientSnapshot: [((), process.client)],
        ProcessSnapshot: [((), process)],
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
