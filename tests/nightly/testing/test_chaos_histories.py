"""The histories that chaos tries are possible: each queue is in order, and each message is finished."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqd.testing.chaos.chaos_history import ChaosDelivery, History, QueueBatch, find_simplest_history, histories

A1, A2, A3 = A = [QueueBatch(("orders", 0), (index,)) for index in range(3)]
B1 = QueueBatch(("orders", 1), (3,))


def whole(*parts: QueueBatch) -> History:
    return tuple(map(ChaosDelivery, parts))


def may_happen(history: History) -> bool:
    """Whether the order within each queue is kept, and every part is finished."""
    for queue in {one.part.queue for one in history}:
        deliveries = [one for one in history if one.part.queue == queue]
        parts = sorted({one.part.messages for one in deliveries})
        next_one = 0
        for one in deliveries:
            index = parts.index(one.part.messages)
            if index > next_one:
                return False
            next_one = index + 1 if one.how == "whole" else index
        if next_one < len(parts):
            return False
    return True


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from([(0, False), (0, True), (1, True), (30, True)]))
def test_all_tried_histories_are_possible(data: st.DataObject, handler: tuple[int, bool]) -> None:
    awaits, is_async = handler
    history = data.draw(histories([*A, B1], awaits, is_async=is_async))
    assert may_happen(history)
    assert all(one.cut_at <= awaits for one in history)
    assert awaits or all(one.how != "cut" for one in history)


def shortest(parts: list[QueueBatch], is_wrong: object, awaits: int = 0) -> History | None:
    return find_simplest_history(parts, awaits, is_wrong, is_async=awaits > 0)  # type: ignore[arg-type]


def test_deliveries_that_are_not_needed_are_removed() -> None:
    assert shortest([*A, B1], lambda one: sum(d.part == A2 for d in one) > 1) == whole(A2, A2)


def test_a_fault_in_the_order_of_queues_keeps_both_queues() -> None:
    found = shortest([*A, B1], lambda one: one[0].part == B1 and any(d.part == A3 for d in one))
    assert found == whole(B1, A3)


def test_a_cut_is_at_the_first_await_that_fails() -> None:
    found = shortest([A1, B1], lambda one: any(d.how == "cut" and d.cut_at > 1 for d in one), awaits=5)
    assert found is not None
    assert len(found) == 2
    assert found[0].how == "cut"
    assert found[0].cut_at == 2


def test_the_same_histories_are_tried_each_time() -> None:
    tried: list[list[History]] = [[], []]
    for one in tried:
        assert shortest([*A, B1], lambda history, one=one: one.append(history), awaits=4) is None
    assert tried[0] == tried[1]
    assert len(set(tried[0])) > 30
    assert {d.how for history in tried[0] for d in history} == {"whole", "cut", "expired"}


@pytest.mark.parametrize("awaits", [1, 8])
def test_each_await_is_tried(awaits: int) -> None:
    cuts: set[int] = set()
    shortest([*A, B1], lambda history: cuts.update(d.cut_at for d in history if d.how == "cut"), awaits)
    assert cuts == set(range(1, awaits + 1))
