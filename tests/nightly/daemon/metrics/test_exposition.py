"""The exposition: which series there are, and that the document lists the same.

The core of these tests is in tests/daemon/metrics/test_exposition.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqd.consumer.circuit import CircuitSnapshot, CircuitState
from tests.daemon.fakes import group_snapshot
from tests.daemon.metrics.test_exposition import process, series


@pytest.mark.parametrize(("state", "value"), [("closed", 0), ("half_open", 1), ("open", 2)])
def test_a_circuit_is_a_number_where_there_is_one(state: CircuitState, value: int) -> None:
    name = "rmqd_circuit_state{engine=local,group=mailer}"
    assert name not in series(process())
    broken = replace(group_snapshot(), circuit=CircuitSnapshot(state, 1.0, "", None))
    assert series(replace(process(), groups=(broken,)))[name] == value


def test_a_queue_that_is_read_from_a_slave_is_seen() -> None:
    """Of one that nobody was asked about yet, nothing is said."""
    group = process(0, 1, 2).groups[0]
    asked = (
        replace(group.queues[0], pulled_from="10.0.0.1:10911"),
        replace(group.queues[1], pulled_from="10.0.0.3:10911", at_slave=True),
        group.queues[2],
    )
    found = series(replace(process(0), groups=(replace(group, queues=asked),)))
    shown = {name: value for name, value in found.items() if name.startswith("rmqd_queue_at_slave{")}
    assert [(name.partition("queue=")[2][0], value) for name, value in sorted(shown.items())] == [("0", 0), ("1", 1)]


def test_what_is_not_known_yet_has_no_series() -> None:
    """An unknown lag is not 0."""
    group = process(0).groups[0]
    unknown = replace(group.queues[0], lag=None, committed=None, last_commit=None)
    found = series(replace(process(0), groups=(replace(group, queues=(unknown,)),)))
    assert not [name for name in found if name.startswith(("rmqd_consumer_lag_messages{", "rmqd_offset_committed{"))]
    assert [name for name in found if name.startswith("rmqd_consumer_lag_seconds{")]


def test_process_and_garbage_collector_are_there() -> None:
    """What every Python service shows."""
    found = series(process())
    assert found["process_resident_memory_bytes{}"] > 0
    assert "python_gc_collections_total{generation=0}" in found
