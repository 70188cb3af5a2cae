"""Sums over processes: counters add up, and gauges are of the living."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqd.consumer.circuit import CircuitSnapshot, CircuitState
from rmqd.consumer.stats.snapshot import MOST_REASONS, OTHER_REASONS, BatchesSnapshot, GroupSnapshot, LastError
from rmqd.daemon.metrics.totals import ProcessSnapshot, add_counters, merge_processes, retired
from rmqd.histogram import Histogram
from tests.daemon.fakes import EMPTY, client_snapshot, group_snapshot, queue_snapshot


def process(worker: int, *groups: GroupSnapshot) -> ProcessSnapshot:
    """A worker with these groups."""
    delays = Histogram((0.1,))
    delays.observe(0.05)
    return ProcessSnapshot(worker, 100 + worker, client_snapshot(f"client-{worker}"), groups, delays.snapshot())


def test_counters_add_up_and_queues_come_together() -> None:
    """Two workers of a group are one group with the queues of both."""
    one = process(1, group_snapshot(received=10, queues=(queue_snapshot(0),)))
    two = process(2, group_snapshot(received=5, queues=(queue_snapshot(1),)))
    merged = merge_processes([one, two])
    (group,) = merged.groups
    assert group.topics[0].received == 15
    assert group.topics[0].handled["acked"] == 15
    assert group.rebalances == 2
    assert [queue.queue for queue in group.queues] == [0, 1]
    assert group.assigned == {"orders": 2}
    assert merged.client.request_failures == {(11, "timeout"): 4}
    assert merged.client.corrupt_frames == 2
    assert merged.loop_delay.count == 2


def test_a_dead_worker_leaves_its_counters_and_nothing_else() -> None:
    """Sums do not fall; its queues, connections and state are gone."""
    dead = retired(process(1, group_snapshot(received=10, queues=(queue_snapshot(0),))))
    merged = merge_processes([process(2, group_snapshot(received=5))], [dead])
    (group,) = merged.groups
    assert group.topics[0].received == 15
    assert group.queues == ()
    assert group.state == "running"
    assert retired(dead).client.brokers_up == {}


def test_the_state_that_most_needs_a_look_is_the_groups() -> None:
    """One failed member of three shows."""
    failed = replace(group_snapshot(), state="failed", failure="boom", ready=False, not_ready_reason="boom")
    merged = merge_processes([process(1, group_snapshot()), process(2, failed), process(3, group_snapshot())])
    group = merged.groups[0]
    assert (group.state, group.failure, group.ready, group.not_ready_reason) == ("failed", "boom", False, "boom")


def test_the_circuit_of_a_group_is_the_one_of_its_workers_that_is_open() -> None:
    """One that ended has none."""
    states: tuple[CircuitState, ...] = ("closed", "open", "half_open")
    groups = [replace(group_snapshot(), circuit=CircuitSnapshot(state, 1.0, "", None)) for state in states]
    processes = [process(number, group) for number, group in enumerate(groups)]
    circuit = merge_processes(processes).groups[0].circuit
    assert circuit is not None
    assert circuit.state == "open"
    assert retired(processes[1]).groups[0].circuit is None


def test_a_queue_that_moves_is_shown_once() -> None:
    """For a moment two workers may show it; the newer owner counts."""
    old = process(1, group_snapshot(queues=(queue_snapshot(0, state="handling", since=1.0),)))
    new = process(2, group_snapshot(queues=(queue_snapshot(0, state="pulling", since=9.0),)))
    for order in ([old, new], [new, old]):
        assert [queue.state for queue in merge_processes(order).groups[0].queues] == ["pulling"]


def test_a_broker_that_one_worker_cannot_reach_is_down() -> None:
    """Half up deserves a look."""
    one, two = process(1), process(2)
    two = replace(two, client=replace(two.client, brokers_up={"10.0.0.9:10911": False}))
    assert merge_processes([one, two]).client.brokers_up == {"10.0.0.9:10911": False}


def test_no_process_is_an_error() -> None:
    """There is no empty process to show."""
    with pytest.raises(ValueError, match="no process"):
        merge_processes([])


def test_figures_of_one_engine_are_not_added_to_the_others() -> None:
    """Their series have other labels."""
    now = replace(group_snapshot(received=1), engine="spark")
    assert add_counters(now, group_snapshot(received=5)) == now
    assert add_counters(now, replace(group_snapshot(received=5), engine="spark")).topics[0].received == 6


def test_figures_of_micro_batches_add_up() -> None:
    batches = BatchesSnapshot(EMPTY, {"handling": 1.5}, 10.0, 2, 1)
    now = replace(group_snapshot(), engine="spark", batches=replace(batches, last_end=None))
    past = replace(group_snapshot(), engine="spark", batches=batches)
    assert add_counters(now, past).batches == BatchesSnapshot(EMPTY, {"handling": 3.0}, 10.0, 4, 2)
    assert add_counters(replace(now, batches=None), past).batches == batches


def test_workers_that_pop_the_same_queue_show_it_once_with_what_they_have_together() -> None:
    one, two = (replace(queue_snapshot(-1, state=state), popped=True) for state in ("waiting", "handling"))
    merged = merge_processes([process(1, group_snapshot(queues=(one,))), process(2, group_snapshot(queues=(two,)))])
    [queue] = merged.groups[0].queues
    assert (queue.number, queue.state, queue.cached, queue.handling, queue.lag) == ("any", "handling", 14, 4, 40)


def test_errors_and_reasons_of_workers_come_together_within_bounds() -> None:
    """The newest errors, the most frequent reasons, and the rest in one number."""

    def told(worker: int, errors: range, reasons: dict[str, int]) -> ProcessSnapshot:
        group = group_snapshot()
        last = tuple(LastError(float(at), f"error {at}", "orders", "A1") for at in errors)
        topic = replace(group.topics[0], errors=last, dead_letter_reasons=reasons)
        return process(worker, replace(group, topics=(topic,), members=(f"m{worker}",), member_count=2))

    rare = {f"no customer {number}": 1 for number in range(MOST_REASONS)}
    merged = merge_processes(
        [told(1, range(4), {"not JSON": 2} | rare), told(2, range(4, 8), {"not JSON": 3, OTHER_REASONS: 1})]
    )
    (group,) = merged.groups
    assert [error.at for error in group.topics[0].errors] == [3.0, 4.0, 5.0, 6.0, 7.0]
    reasons = group.topics[0].dead_letter_reasons
    assert (reasons["not JSON"], reasons[OTHER_REASONS], len(reasons)) == (5, 2, MOST_REASONS + 1)
    assert (group.members, group.member_count) == (("m1", "m2"), 2)
