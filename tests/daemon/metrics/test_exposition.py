"""The series of the exposition, and their list in docs/metrics.md."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from rmqd.config.model.root_model import MetricsConfig
from rmqd.consumer.stats.stats_snapshot import REPEAT_CAUSES
from rmqd.daemon.groups.group_engine import HostSnapshot, ProcessSnapshot
from rmqd.daemon.metrics.exposition import METRIC_SPECS, render
from rmqd.runtime.histogram import Histogram
from tests.daemon.fakes import ABOUT, client_snapshot, group_snapshot, queue_snapshot, topic_snapshot

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


def process(*queues: int) -> ProcessSnapshot:
    """A process with one group of these queues."""
    durations = Histogram((0.1, 1.0))
    durations.observe(0.05, 3)
    durations.observe(7.0)
    topic = replace(
        topic_snapshot(received=9),
        handler_duration=durations.snapshot(),
        duplicates={"handed_over": 2},
        exceptions={"ValueError": 1},
    )
    group = group_snapshot(queues=tuple(queue_snapshot(queue, state="handling") for queue in queues))
    retry = replace(topic_snapshot(is_retry=True), handled={}, flow_control={})  # missing counts must be exposed as 0
    group = replace(group, topics=(topic, retry))
    return ProcessSnapshot(None, 1, client_snapshot(), (group,), Histogram((0.1,)).snapshot())


def view(process: ProcessSnapshot) -> HostSnapshot:
    """A daemon with this worker."""
    return HostSnapshot((process,), workers={"running": 2, "restarting": 0}, worker_restarts=1)


def rendered(process: ProcessSnapshot, accept: str = "", **metrics: Any) -> tuple[bytes, str]:
    """A scrape of a daemon with this worker, and its content type; `metrics` as in the configuration."""
    return asyncio.run(render(view(process), ABOUT, accept, MetricsConfig(**metrics)))


def series(process: ProcessSnapshot, **metrics: Any) -> dict[str, float]:
    """Every sample by its name and labels."""
    body, _ = rendered(process, **metrics)
    return {
        f"{sample.name}{{{','.join(f'{key}={value}' for key, value in sorted(sample.labels.items()))}}}": sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_every_result_and_reason_exists_at_zero() -> None:
    """So that rate() sees the first event."""
    found = series(process())
    for is_retry in ("true", "false"):
        labels = f"engine=local,group=mailer,is_retry={is_retry}"
        for result in ("acked", "retried", "dead_lettered", "expired", "corrupt"):
            assert found[f"rmqd_messages_handled_total{{{labels},result={result},topic=orders}}"] == 0
        for reason in ("count", "size", "span", "paused"):
            assert found[f"rmqd_flow_control_total{{{labels},reason={reason},topic=orders}}"] == 0
        for reason in ("handler", "limit", "level", "corrupt"):
            assert found[f"rmqd_dlq_total{{{labels},reason={reason},topic=orders}}"] == 0
        for cause in REPEAT_CAUSES[1:]:
            assert found[f"rmqd_duplicates_total{{cause={cause},{labels},topic=orders}}"] == 0
    assert found["rmqd_broker_request_failures_total{code=HEART_BEAT,reason=timeout}"] == 0
    for code in ("HEART_BEAT", "PULL_MESSAGE"):
        assert found[f"rmqd_broker_request_failures_total{{code={code},reason=closed}}"] == 0


def test_a_histogram_has_cumulative_buckets_count_and_sum_in_seconds() -> None:
    found = series(process())
    labels = "engine=local,group=mailer,is_retry=false"
    name = "rmqd_handler_duration_seconds"
    assert found[f"{name}_bucket{{{labels.replace('is_retry=false', 'is_retry=false,le=0.1')},topic=orders}}"] == 3
    assert found[f"{name}_bucket{{{labels.replace('is_retry=false', 'is_retry=false,le=1.0')},topic=orders}}"] == 3
    assert found[f"{name}_bucket{{{labels.replace('is_retry=false', 'is_retry=false,le=+Inf')},topic=orders}}"] == 4
    assert found[f"{name}_count{{{labels},topic=orders}}"] == 4
    assert abs(found[f"{name}_sum{{{labels},topic=orders}}"] - 7.15) < 1e-9


def test_a_released_queue_has_no_series() -> None:
    """No stale series remain."""
    before, after = series(process(0, 1)), series(process(1))
    gone = {name for name in before if name not in after}
    assert gone
    assert all("queue=0" in name for name in gone)
    labels = "broker=broker-a,engine=local,group=mailer,is_retry=false,queue=1"
    assert after[f"rmqd_consumer_lag_messages{{{labels},topic=orders}}"] == 40
    assert after[f"rmqd_offset_committed{{{labels},topic=orders}}"] == 60


def test_a_queue_has_a_series_of_its_current_state_only() -> None:
    states = {name: value for name, value in series(process(0)).items() if name.startswith("rmqd_queue_state{")}
    labels = "broker=broker-a,engine=local,group=mailer,is_retry=false,queue=0,state=handling,topic=orders"
    assert states == {f"rmqd_queue_state{{{labels}}}": 1}


VALUES: Any = (
    0,
    1,
    999_999,
    1_000_000,
    123_456_789,
    10**16,
    0.1,
    2.5e-7,
    1.7e9,
    math.inf,
    -math.inf,
    math.nan,
    -1,
    None,
)
TEXTS = ("plain", 'quoted "twice" \\ and\nbroken', "größer ✓", "", "50%{a}")


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0"])
def test_queue_series_equal_the_output_of_prometheus_client(accept: str) -> None:
    """Compared byte for byte, with each kind of value and names that must be escaped. Its parser reads the names."""
    queues = tuple(
        replace(queue_snapshot(number), topic=text, broker=text, lag=value, lag_seconds=value, span=value or 0)
        for number, (text, value) in enumerate(itertools.product(TEXTS, VALUES))
    )
    group = replace(process().groups[0], name=TEXTS[1], queues=queues)
    body, _ = rendered(replace(process(), groups=(group,)), accept)
    encode, _ = choose_encoder(accept)
    for name in ("rmqd_consumer_lag_messages", "rmqd_queue_span_messages", "rmqd_queue_state"):
        spec = METRIC_SPECS[name]
        family = GaugeMetricFamily(name, spec.metric.help, labels=spec.labels)
        for queue in queues:
            labels = [group.engine, group.name, queue.topic, "false", queue.broker, queue.queue_label]
            found = spec.metric.value(queue, spec.field)
            for more, value in found.items() if spec.metric.by else [((), found)]:
                if value is not None:
                    family.add_metric([*labels, *([more] if more else [])], value)
        registry = CollectorRegistry()
        registry.register(Given([family]))
        assert encode(registry).removesuffix(b"# EOF\n") in body, name
    if not accept:
        parsed = {one.name: one for one in text_string_to_metric_families(body.decode())}
        assert {sample.labels["topic"] for sample in parsed["rmqd_queue_state"].samples} == set(TEXTS)


class Given(Collector):
    """A collector of given families."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def test_the_document_lists_every_metric_with_its_labels() -> None:
    """It lists no other metric."""
    rows = re.findall(r"^\| `(rmqd_\w+)` \| (\w+) \| ([^|]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert documented == {name: (spec.metric.kind, spec.labels) for name, spec in METRIC_SPECS.items()}


def test_each_label_has_one_documented_meaning() -> None:
    """A metric with a new label must be listed with the label's meaning, or the label needs another name."""
    used = {label for spec in METRIC_SPECS.values() for label in spec.labels}
    expected = {label: {name for name, spec in METRIC_SPECS.items() if label in spec.labels} for label in used}
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| [^|]+ \| (all|`)([^|]*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    documented = [(label, more, listed) for labels, more, listed in rows for label in re.findall(r"`(\w+)`", labels)]
    assert sorted(label for label, *_ in documented) == sorted({*used, "variant"})
    for label, more, listed in documented:
        if more != "all":
            assert set(re.findall(r"\w+", listed)) == expected[label], label


def test_names_follow_the_conventions() -> None:
    """Counters end in _total, and nothing else does; no milliseconds."""
    for name, spec in METRIC_SPECS.items():
        assert name.endswith("_total") == (spec.metric.kind == "counter"), name
        assert not re.search(r"_(ms|milliseconds|millis|kb|mb|percent)\b", name)
        assert spec.metric.help.endswith(".")
