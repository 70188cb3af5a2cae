"""The histories that are tried may happen: each queue in its order, each message to its end."""

from __future__ import annotations

import pytest

from rmqd.testing.chaos.chaos_history import ChaosDelivery, QueueBatch, may_happen, tried
from rmqd.testing.chaos.chaos_search import shorten

A1, A2, A3 = (QueueBatch(("orders", 0), (index,)) for index in range(3))
B1 = QueueBatch(("orders", 1), (3,))


def whole(*parts: QueueBatch) -> tuple[ChaosDelivery, ...]:
    return tuple(map(ChaosDelivery, parts))


@pytest.mark.parametrize(("awaits", "is_async"), [(0, False), (0, True), (1, True), (30, True)])
def test_all_that_are_tried_may_happen_and_differ(awaits: int, is_async: bool) -> None:
    histories = list(tried([A1, A2, A3, B1], awaits, is_async=is_async))
    assert all(map(may_happen, histories))
    assert len(set(histories)) > len(histories) * 0.8
    assert histories == list(tried([A1, A2, A3, B1], awaits, is_async=is_async))


def test_a_sync_handler_is_never_cut() -> None:
    assert {one.how for history in tried([A1, B1], 0, is_async=False) for one in history} == {"whole", "expired"}


@pytest.mark.parametrize(
    ("history", "may"),
    [
        (whole(A1, A2, B1, A3), True),
        (whole(A1, A2, A1, A2, A3), True),
        (whole(A2, A1, A3), False),
        (whole(A1, A2, A3, A1), False),  # A2 and A3 have to come again, too
        ((ChaosDelivery(A1, "cut", 1), *whole(A1, A2)), True),
        ((ChaosDelivery(A1, "cut", 1), *whole(A2)), False),
        ((*whole(A1), ChaosDelivery(A2, "expired")), False),
    ],
)
def test_a_queue_goes_on_or_goes_back(history: tuple[ChaosDelivery, ...], may: bool) -> None:
    assert may_happen(history) == may


def test_what_is_not_needed_is_left_out() -> None:
    """A2 twice is what is wrong."""
    history = next(iter(tried([A1, A2, A3, B1], 0, is_async=False)))
    assert shorten(history, lambda one: sum(d.part == A2 for d in one) > 1) == whole(A2, A2)


def test_a_cut_becomes_an_earlier_one_or_none() -> None:
    history = (ChaosDelivery(A1, "expired", 5), *whole(A1))
    assert shorten(history, lambda one: len(one) > 1 and one[0].how == "cut") == (
        ChaosDelivery(A1, "cut", 1),
        *whole(A1),
    )
    assert shorten(history, lambda one: len(one) > 1 and one[0].cut_at > 1) == (ChaosDelivery(A1, "cut", 2), *whole(A1))
    assert shorten(history, lambda one: len(one) > 1) == whole(A1, A1)
