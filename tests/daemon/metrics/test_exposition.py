"""The exposition: which series there are, and that the document lists the same."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rmqd.daemon.groups.group_engine import HostView, ProcessSnapshot
from rmqd.daemon.metrics.exposition import CATALOGUE, render
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
        duplicates={"handover_timeout": 2},
        exceptions={"ValueError": 1},
    )
    group = group_snapshot(queues=tuple(queue_snapshot(queue, state="handling") for queue in queues))
    retry = replace(topic_snapshot(is_retry=True), handled={}, flow_control={})  # what was not counted yet is 0 as well
    group = replace(group, topics=(topic, retry))
    return ProcessSnapshot(None, 1, client_snapshot(), (group,), Histogram((0.1,)).snapshot())


def view(process: ProcessSnapshot) -> HostView:
    """A daemon with this worker."""
    return HostView((process,), workers={"running": 2, "restarting": 0}, worker_restarts=1)


def series(process: ProcessSnapshot, accept: str = "") -> dict[str, float]:
    """Every sample by its name and labels."""
    body, _ = render(view(process), ABOUT, accept)
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


def test_a_histogram_is_cumulative_in_seconds() -> None:
    """Buckets up to and with their bound, then the sum and the count."""
    found = series(process())
    labels = "engine=local,group=mailer,is_retry=false"
    name = "rmqd_handler_duration_seconds"
    assert found[f"{name}_bucket{{{labels.replace('is_retry=false', 'is_retry=false,le=0.1')},topic=orders}}"] == 3
    assert found[f"{name}_bucket{{{labels.replace('is_retry=false', 'is_retry=false,le=1.0')},topic=orders}}"] == 3
    assert found[f"{name}_bucket{{{labels.replace('is_retry=false', 'is_retry=false,le=+Inf')},topic=orders}}"] == 4
    assert found[f"{name}_count{{{labels},topic=orders}}"] == 4
    assert abs(found[f"{name}_sum{{{labels},topic=orders}}"] - 7.15) < 1e-9


def test_a_queue_that_is_given_away_takes_its_series_along() -> None:
    """No stale labels: what is not owned is not shown."""
    before, after = series(process(0, 1)), series(process(1))
    gone = {name for name in before if name not in after}
    assert gone
    assert all("queue=0" in name for name in gone)
    labels = "broker=broker-a,engine=local,group=mailer,is_retry=false,queue=1"
    assert after[f"rmqd_consumer_lag_messages{{{labels},topic=orders}}"] == 40
    assert after[f"rmqd_offset_committed{{{labels},topic=orders}}"] == 60


def test_exactly_one_state_of_a_queue_is_one() -> None:
    """The others are there, at zero."""
    states = {name: value for name, value in series(process(0)).items() if name.startswith("rmqd_queue_state{")}
    assert len(states) == 8
    assert [name for name, value in states.items() if value == 1] == [
        "rmqd_queue_state{broker=broker-a,engine=local,group=mailer,is_retry=false,queue=0,state=handling,topic=orders}"
    ]


def test_request_codes_have_their_names() -> None:
    """As RocketMQ calls them."""
    found = series(process())
    assert found["rmqd_broker_request_duration_seconds_count{code=PULL_MESSAGE}"] == 0
    assert found["rmqd_broker_request_failures_total{code=PULL_MESSAGE,reason=timeout}"] == 2
    assert found["rmqd_broker_up{broker=10.0.0.9:10911}"] == 1


@pytest.mark.parametrize("version", ["1.0.0 ]", "x", "1.\u00b2", "9" * 5000])
@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
def test_a_format_of_no_version_is_the_plain_one(kind: str, version: str) -> None:
    """A client may ask for anything, and gets what old scrapers get."""
    plain, content_type = render(view(process()), ABOUT, "")
    body, chosen = render(view(process()), ABOUT, f"{kind};version={version}")
    assert chosen.partition(";")[0] in (content_type.partition(";")[0], kind)
    assert body.count(b"# TYPE rmqd_") == plain.count(b"# TYPE rmqd_")


def test_the_format_follows_the_accept_header() -> None:
    """OpenMetrics where it is asked for."""
    body, content_type = render(view(process()), ABOUT, "application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert render(view(process()), ABOUT, "")[1].startswith("text/plain")


def test_the_document_lists_every_metric_with_its_labels() -> None:
    """And no other."""
    rows = re.findall(r"^\| `(rmqd_\w+)` \| (\w+) \| ([^|]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert documented == {name: (spec.metric.kind, spec.labels) for name, spec in CATALOGUE.items()}


def test_names_follow_the_conventions() -> None:
    """Counters end in _total, and nothing else does; no milliseconds."""
    for name, spec in CATALOGUE.items():
        assert name.endswith("_total") == (spec.metric.kind == "counter"), name
        assert not re.search(r"_(ms|milliseconds|millis|kb|mb|percent)\b", name)
        assert spec.metric.help.endswith(".")
