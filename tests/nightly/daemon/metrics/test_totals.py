"""Sums over worker processes: counters of all workers, gauges of running workers.

The core of these tests is in tests/daemon/metrics/test_totals.py.
"""

from __future__ import annotations

from dataclasses import replace

from rmqd.consumer.circuit import CircuitSnapshot, CircuitState
from rmqd.consumer.stats.stats_snapshot import MAX_REASONS, OTHER_REASONS, BatchesSnapshot, LastError
from rmqd.daemon.groups.group_engine import ProcessSnapshot, add_ended_counters, merge_processes
from tests.daemon.fakes import EMPTY, group_snapshot, queue_snapshot
from tests.daemon.metrics.test_totals import process


def test_a_group_has_the_worst_circuit_state_of_its_workers() -> None:
    """The circuit of an ended worker is ignored."""
    states: tuple[CircuitState, ...] = ("closed", "open", "half_open")
    groups = [replace(group_snapshot(), circuit=CircuitSnapshot(state, 1.0, "", None)) for state in states]
    processes = [process(number, group) for number, group in enumerate(groups)]
    circuit = merge_processes(processes).groups[0].circuit
    assert circuit is not None
    assert circuit.state == "open"
    living = merge_processes([processes[0]], [processes[1]]).groups[0].circuit
    assert living is not None
    assert living.state == "closed"


def test_counters_of_different_engines_are_not_added() -> None:
    """Their series have other labels."""
    now = replace(group_snapshot(received=1), engine="spark")
    assert add_ended_counters(now, group_snapshot(received=5)) == now
    assert add_ended_counters(now, replace(group_snapshot(received=5), engine="spark")).topics[0].received == 6


def test_counters_of_micro_batches_are_added() -> None:
    batches = BatchesSnapshot(EMPTY, {"handling": 1.5}, 10.0, 2, 1)
    now = replace(group_snapshot(), engine="spark", batches=replace(batches, last_end=None))
    past = replace(group_snapshot(), engine="spark", batches=batches)
    assert add_ended_counters(now, past).batches == BatchesSnapshot(EMPTY, {"handling": 3.0}, 10.0, 4, 2)
    assert add_ended_counters(replace(now, batches=None), past).batches == batches


def test_a_queue_that_several_workers_pop_is_shown_once_with_sums() -> None:
    one, two = (replace(queue_snapshot(-1, state=state), popped=True) for state in ("waiting", "handling"))
    merged = merge_processes([process(1, group_snapshot(queues=(one,))), process(2, group_snapshot(queues=(two,)))])
    [queue] = merged.groups[0].queues
    assert (queue.queue_label, queue.state, queue.cached, queue.handling, queue.lag) == ("any", "handling", 14, 4, 40)
    assert merged.groups[0].assigned == {"orders": 1}


def test_errors_and_reasons_of_workers_are_merged_up_to_a_limit() -> None:
    """The newest errors and the most frequent reasons are kept. Other reasons are counted together."""

    def told(worker: int, errors: range, reasons: dict[str, int]) -> ProcessSnapshot:
        group = group_snapshot()
        last = tuple(LastError(float(at), f"error {at}", "orders", "A1") for at in errors)
        topic = replace(group.topics[0], errors=last, dead_letter_reasons=reasons)
        return process(worker, replace(group, topics=(topic,), members=(f"m{worker}",), member_count=2))

    rare = {f"no customer {number}": 1 for number in range(MAX_REASONS)}
    merged = merge_processes(
        [told(1, range(4), {"not JSON": 2} | rare), told(2, range(4, 8), {"not JSON": 3, OTHER_REASONS: 1})]
    )
    (group,) = merged.groups
    assert [error.at for error in group.topics[0].errors] == [3.0, 4.0, 5.0, 6.0, 7.0]
    reasons = group.topics[0].dead_letter_reasons
    assert (reasons["not JSON"], reasons[OTHER_REASONS], len(reasons)) == (5, 2, MAX_REASONS + 1)
    assert (group.members, group.member_count) == (("m1", "m2"), 2)
