"""Renders snapshots as Prometheus series.

Each scrape renders a new snapshot, so a queue that moved to another member leaves no series behind. The fields of the
snapshot classes declare the metrics (`runtime.figures`). docs/metrics.md lists all metrics.

prometheus_client writes all series except the series of queues. A daemon may have tens of thousands of these, so this
module writes their text itself: thirty times as fast, and in slices, so that the event loop runs between two slices.
The series of queues are gauges, which have the same text in the Prometheus format and in OpenMetrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from heapq import nlargest
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from rmqd.client.remoting.pending import ClientSnapshot
from rmqd.config.model.root_model import MetricsConfig
from rmqd.consumer.canary import CanarySnapshot
from rmqd.consumer.stats.stats_snapshot import BatchesSnapshot, GroupSnapshot, QueueSnapshot, TopicSnapshot
from rmqd.daemon.groups.group_engine import HostSnapshot, ProcessSnapshot, merge_processes
from rmqd.daemon.http.daemon_status import DaemonInfo
from rmqd.runtime.event_loop import in_slices
from rmqd.runtime.figures import Metric, figures_of
from rmqd.runtime.histogram import HistogramSnapshot
from rmqd.runtime.logs.log_writer import count_dropped_lines
from rmqd.runtime.own_threads import call_in_thread

_GROUP: Final = ("engine", "group")
_TOPIC: Final = (*_GROUP, "topic", "is_retry")
_QUEUE: Final = (*_TOPIC, "broker", "queue")
_VARIANT: Final = "variant"  # the last label; only the series of a canary have it
# The snapshot classes that declare metrics, and the labels of their series.
_LABELS: Final[Mapping[type, tuple[str, ...]]] = {
    DaemonInfo: (),
    HostSnapshot: (),
    ClientSnapshot: (),
    ProcessSnapshot: (),
    GroupSnapshot: _GROUP,
    BatchesSnapshot: _GROUP,
    CanarySnapshot: _GROUP,
    TopicSnapshot: _TOPIC,
    QueueSnapshot: _QUEUE,
}
_END: Final = b"# EOF\n"  # required by OpenMetrics
WORST_QUEUES: Final = 10


class FamilySpec(NamedTuple):
    """A metric, the snapshot field that declares it, and the names of all its labels."""

    metric: Metric
    field: str
    labels: tuple[str, ...]


def _specs(snapshot: type) -> Iterator[FamilySpec]:
    for name, figure in figures_of(snapshot).items():
        if figure.metric is not None:
            yield FamilySpec(figure.metric, name, (*_LABELS[snapshot], *figure.metric.by))


def _worst_specs() -> Iterator[FamilySpec]:
    for spec in _QUEUE_SPECS:
        if spec.metric.worst:
            help_text = (
                f"{spec.metric.help} Only the {WORST_QUEUES} queues of each group with the greatest lag; see per_queue."
            )
            yield spec._replace(metric=replace(spec.metric, name=spec.metric.worst, help=help_text))


_QUEUE_SPECS: Final = tuple(_specs(QueueSnapshot))
_WORST_SPECS: Final = tuple(_worst_specs())
METRIC_SPECS: Final = {spec.metric.name: spec for specs in (*map(_specs, _LABELS), _WORST_SPECS) for spec in specs}
"""Every metric that the daemon exports, by name."""

LabelledSnapshots = Sequence[tuple[tuple[str, ...], object]]
"""Snapshots of one class, each with the values of its labels."""


async def render(view: HostSnapshot, about: DaemonInfo, accept: str, config: MetricsConfig) -> tuple[bytes, str]:
    """Return the metrics text and its content type, in the format of the Accept header. Needs at least one process."""
    process = merge_processes(view.processes, view.past)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(_Snapshot(_labelled(view, process, about)))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the library fails if `version=` is not a number
        encode, content_type = choose_encoder("")
    text = await call_in_thread(lambda: encode(registry))
    end = _END if text.endswith(_END) else b""
    return b"".join([text.removesuffix(end), *await _queue_families(process.groups, config), end]), content_type


class _Snapshot(Collector):
    def __init__(self, snapshots: Mapping[type, LabelledSnapshots]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[Family]:
        """Yield the metric families one by one, so that only one family is in memory."""
        for snapshot, labelled in self._snapshots.items():
            for spec in _specs(snapshot):
                yield _family(spec, labelled)


def _labelled(view: HostSnapshot, process: ProcessSnapshot, about: DaemonInfo) -> dict[type, LabelledSnapshots]:
    if view.workers is not None:
        # the parent process, which runs no group, drops log lines too
        process = replace(process, log_dropped=process.log_dropped + count_dropped_lines())
    groups = [((group.engine, group.name), group) for group in process.groups]
    return {
        DaemonInfo: [((), about)],
        HostSnapshot: [((), view)],
        ClientSnapshot: [((), process.client)],
        ProcessSnapshot: [((), process)],
        GroupSnapshot: groups,
        CanarySnapshot: [
            (labels, group.canary) for labels, group in groups if group.canary and group.canary.mode == "shadow"
        ],
        BatchesSnapshot: [(labels, group.batches) for labels, group in groups if group.batches is not None],
        TopicSnapshot: [
            ((*labels, topic.topic, _flag(topic.is_retry)), topic) for labels, group in groups for topic in group.topics
        ],
    }


def _family(spec: FamilySpec, snapshots: LabelledSnapshots) -> Family:
    metric = spec.metric
    if metric.kind == "histogram":
        histograms = HistogramMetricFamily(metric.name, metric.help, labels=(*spec.labels, _VARIANT))
        for labels, value in _values(spec, snapshots):
            if value.count or "topic" not in spec.labels:  # an idle topic would have fifty series of zeros
                histograms.add_metric(labels, _buckets(value), value.sum)
        return histograms
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=(*spec.labels, _VARIANT))
    for labels, value in _values(spec, snapshots):
        family.add_metric(labels, value)
    return family


def _values(spec: FamilySpec, snapshots: LabelledSnapshots) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the label values and the value of each series. An unknown value has no series."""
    metric, name = spec.metric, spec.field
    for labels, snapshot in snapshots:
        value = metric.value(snapshot, name)
        if value is None:
            continue
        last = (variant,) if (variant := getattr(snapshot, _VARIANT, "")) else ()
        if not metric.by:
            yield (*labels, *last), value
            continue
        for key, number in value.items():
            yield (*labels, *(map(str, key) if isinstance(key, tuple) else (str(key),)), *last), number


def _buckets(histogram: HistogramSnapshot) -> list[tuple[str, float]]:
    """Return the cumulative number of values up to each bound, as Prometheus expects it."""
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))


class _LabelText(NamedTuple):
    """The text of a series' labels, sorted by name, in two parts. A label `state` is inserted between the parts."""

    before: str
    after: str


async def _queue_families(groups: Sequence[GroupSnapshot], config: MetricsConfig) -> list[bytes]:
    """Return the text of each queue metric: a series for each queue, or sums by topic and the most delayed queues."""
    is_small = sum(len(group.queues) for group in groups) <= config.per_queue_limit
    has_each = config.per_queue == "always" or (config.per_queue == "auto" and is_small)
    lines: dict[FamilySpec, list[str]] = {spec: [] for spec in (*_QUEUE_SPECS, *_WORST_SPECS)}
    sums: dict[tuple[FamilySpec, _LabelText], Any] = {}
    for group in groups:
        worst: list[QueueSnapshot] = []
        async for queues in in_slices(group.queues):
            if has_each:
                labels = [_queue_labels(group, queue) for queue in queues]
                for spec in _QUEUE_SPECS:
                    lines[spec].append(_lines(spec, zip(labels, map(_reader(spec), queues), strict=True)))
            else:
                _add(sums, group, queues)
                if config.per_queue == "auto":
                    behind = [queue for queue in (*worst, *queues) if queue.lag]
                    worst = nlargest(WORST_QUEUES, behind, key=attrgetter("lag"))
        for spec in _WORST_SPECS:
            lines[spec].append(_lines(spec, ((_queue_labels(group, one), _reader(spec)(one)) for one in worst)))
    for (spec, label_text), value in sums.items():
        lines[spec].append(_lines(spec, [(label_text, value)]))
    return [
        f"{_head(spec.metric)}{''.join(found)}".encode()
        async for family in in_slices(lines.items(), 1)
        for spec, found in family
    ]


def _add(sums: dict[tuple[FamilySpec, _LabelText], Any], group: GroupSnapshot, queues: Iterable[QueueSnapshot]) -> None:
    """Add the values of a group's queues to the sums of their topics in `sums`."""
    by_topic: dict[tuple[str, bool], list[QueueSnapshot]] = {}
    for queue in queues:
        by_topic.setdefault((queue.topic, queue.is_retry), []).append(queue)
    for found in by_topic.values():
        labels = _topic_labels(group, found[0])
        for spec in _QUEUE_SPECS:
            if spec.metric.over_queues is not None:
                values = [sums.get((spec, labels)), *map(_reader(spec), found)]
                known = [value for value in values if value is not None]
                sums[spec, labels] = reduce(spec.metric.over_queues, known) if known else None


def _lines(spec: FamilySpec, series: Iterable[tuple[_LabelText, Any]]) -> str:
    """Return the lines of a metric's series. An unknown value has no line."""
    name = spec.metric.name
    if not spec.metric.by:
        return "".join(
            [f"{name}{{{before}{after}}} {_number(value)}\n" for (before, after), value in series if value is not None]
        )
    (by,) = spec.metric.by
    return "".join(
        [
            f'{name}{{{before},{by}="{_escaped(key)}"{after}}} {_number(value)}\n'
            for (before, after), values in series
            for key, value in values.items()
        ]
    )


def _head(metric: Metric) -> str:
    return f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"


def _reader(spec: FamilySpec) -> Callable[[Any], Any]:
    return spec.metric.read or attrgetter(spec.field)


def _queue_labels(group: GroupSnapshot, queue: QueueSnapshot) -> _LabelText:
    topic = _topic_labels(group, queue)
    return _LabelText(f'broker="{_escaped(queue.broker)}",{topic.before},queue="{queue.queue_label}"', topic.after)


@lru_cache(1024)
def _topic_text(engine: str, group: str, topic: str, is_retry: bool) -> _LabelText:
    before = f'engine="{engine}",group="{_escaped(group)}",is_retry="{_flag(is_retry)}"'
    return _LabelText(before, f',topic="{_escaped(topic)}"')


def _topic_labels(group: GroupSnapshot, queue: QueueSnapshot) -> _LabelText:
    return _topic_text(group.engine, group.name, queue.topic, queue.is_retry)


@lru_cache(1024)
def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


_number: Final = lru_cache(1024)(floatToGoString)


def _flag(value: bool) -> str:
    return "true" if value else "false"
