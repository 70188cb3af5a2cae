"""The series of the exposition, and its formats.

The core of these tests is in tests/daemon/metrics/test_exposition.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmqd.consumer.circuit import CircuitSnapshot, CircuitState
from rmqd.daemon.groups.group_engine import ProcessSnapshot
from tests.daemon.fakes import group_snapshot, queue_snapshot
from tests.daemon.metrics.test_exposition import process, rendered, series


@pytest.mark.parametrize(("state", "value"), [("closed", 0), ("half_open", 1), ("open", 2)])
def test_the_state_of_a_circuit_is_a_number(state: CircuitState, value: int) -> None:
    name = "rmqd_circuit_state{engine=local,group=mailer}"
    assert name not in series(process())
    broken = replace(group_snapshot(), circuit=CircuitSnapshot(state, 1.0, "", None))
    assert series(replace(process(), groups=(broken,)))[name] == value


def test_a_metric_shows_queues_that_are_pulled_from_a_slave() -> None:
    """A queue without a pull has no series."""
    group = process(0, 1, 2).groups[0]
    asked = (
        replace(group.queues[0], pulled_from="10.0.0.1:10911"),
        replace(group.queues[1], pulled_from="10.0.0.3:10911", at_slave=True),
        group.queues[2],
    )
    found = series(replace(process(0), groups=(replace(group, queues=asked),)))
    shown = {name: value for name, value in found.items() if name.startswith("rmqd_queue_at_slave{")}
    assert [(name.partition("queue=")[2][0], value) for name, value in sorted(shown.items())] == [("0", 0), ("1", 1)]


def test_unknown_lag_and_offset_have_no_series() -> None:
    """An unknown lag must not be exposed as 0."""
    group = process(0).groups[0]
    unknown = replace(group.queues[0], lag=None, committed=None, last_commit=None)
    found = series(replace(process(0), groups=(replace(group, queues=(unknown,)),)))
    assert not [name for name in found if name.startswith(("rmqd_consumer_lag_messages{", "rmqd_offset_committed{"))]
    assert [name for name in found if name.startswith("rmqd_consumer_lag_seconds{")]


def test_a_topic_without_values_has_no_histograms() -> None:
    """Most series of a group with many topics would belong to topics without messages."""
    found = series(process())
    counts = {name for name in found if name.startswith("rmqd_handler_duration_seconds_count")}
    assert counts == {"rmqd_handler_duration_seconds_count{engine=local,group=mailer,is_retry=false,topic=orders}"}
    assert not [name for name in found if name.startswith("rmqd_message_age_seconds")]


def test_process_and_garbage_collector_have_metrics() -> None:
    """Other Python services expose the same metrics."""
    found = series(process())
    assert found["process_resident_memory_bytes{}"] > 0
    assert "python_gc_collections_total{generation=0}" in found


def wide() -> ProcessSnapshot:
    """A process with two groups. One has 12 queues of two topics, and one of these queues has no lag."""
    queues = [
        replace(queue_snapshot(number, state="waiting"), lag=number, lag_seconds=2.0 * number) for number in range(8)
    ]
    others = [replace(queue_snapshot(number, state="stuck"), topic="bills", lag=50 + number) for number in range(4)]
    others[0] = replace(others[0], lag=None, last_commit=1.8e9, pulled_from="10.0.0.3:10911", at_slave=True)
    two = process()
    wide = replace(two.groups[0], queues=(*queues, *others))
    return replace(two, groups=(wide, replace(process(0).groups[0], name="audit")))


@pytest.mark.parametrize(
    ("metrics", "queues", "worst"),
    [
        ({"per_queue_limit": 13}, 13, 0),
        ({"per_queue_limit": 12}, 0, 11),
        ({"per_queue": "always", "per_queue_limit": 1}, 13, 0),
        ({"per_queue": "never"}, 0, 0),
    ],
)
def test_above_the_limit_topics_have_sums_and_ten_queues_per_group_have_a_lag(
    metrics: dict[str, Any], queues: int, worst: int
) -> None:
    """All queues or none have the other series. Sums by group are always the same."""
    found = series(wide(), **metrics)
    names = {name for name in found if "queue=" in name}
    assert sum(name.startswith("rmqd_queue_state{") for name in names) == queues
    assert sum(name.startswith("rmqd_worst_queue_lag_messages{") for name in names) == worst
    if worst:
        lags = [value for name, value in found.items() if "worst_queue_lag_messages" in name and "=mailer" in name]
        assert sorted(lags) == [1, 2, 3, 4, 5, 6, 7, 51, 52, 53]
    lag = {name: value for name, value in found.items() if name.startswith("rmqd_consumer_lag_messages{")}
    assert sum(value for name, value in lag.items() if "=mailer" in name) == sum(range(8)) + 51 + 52 + 53
    if queues:
        return
    labels = "engine=local,group=mailer,is_retry=false,{}topic=bills"
    assert found[f"rmqd_consumer_lag_messages{{{labels.format('')}}}"] == 51 + 52 + 53
    assert found[f"rmqd_consumer_lag_seconds{{{labels.format('')}}}"] == 2.5
    assert found[f"rmqd_cached_messages{{{labels.format('')}}}"] == 28
    assert found[f"rmqd_last_commit_timestamp_seconds{{{labels.format('')}}}"] == 1.8e9
    assert found[f"rmqd_queue_at_slave{{{labels.format('')}}}"] == 1
    assert found[f"rmqd_queue_state{{{labels.format('state=stuck,')}}}"] == 4
    assert not [name for name in found if name.startswith("rmqd_offset_committed{")]


def test_request_codes_have_the_names_of_rocketmq() -> None:
    found = series(process())
    assert found["rmqd_broker_request_duration_seconds_count{code=PULL_MESSAGE}"] == 0
    assert found["rmqd_broker_request_failures_total{code=PULL_MESSAGE,reason=timeout}"] == 2
    assert found["rmqd_broker_up{broker=broker-9,broker_id=0}"] == 1


@pytest.mark.parametrize("version", ["1.0.0 ]", "x", "1.\u00b2", "9" * 5000])
@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
def test_a_format_with_an_unknown_version_is_answered_in_the_plain_format(kind: str, version: str) -> None:
    plain, content_type = rendered(process())
    body, chosen = rendered(process(), f"{kind};version={version}")
    assert chosen.partition(";")[0] in (content_type.partition(";")[0], kind)
    assert body.count(b"# TYPE rmqd_") == plain.count(b"# TYPE rmqd_")


def test_the_format_follows_the_accept_header() -> None:
    """OpenMetrics is used only on request."""
    body, content_type = rendered(process(), "application/openmetrics-text;version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert rendered(process())[1].startswith("text/plain")
