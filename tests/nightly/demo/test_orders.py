"""The orders of the demo's producer, and their times."""

from __future__ import annotations

import itertools
import json

import pytest

from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.demo.demo_orders import BURST_EVERY_SECONDS, OrderGenerator, orders_due


def take(count: int, *topics: str, seed: int = 1) -> list[OutgoingMessage]:
    orders = OrderGenerator(topics or ("orders",), seed)
    return [orders.next_order() for _ in range(count)]


def is_json(message: OutgoingMessage) -> bool:
    try:
        json.loads(message.body)
    except ValueError:
        return False
    return True


def test_the_same_seed_gives_the_same_orders() -> None:
    assert take(200) == take(200)
    assert take(200) != take(200, seed=2)


def test_orders_have_the_fields_of_a_shop() -> None:
    messages = [message for message in take(500) if is_json(message)]
    for message in messages:
        order = json.loads(message.body)

        assert message.keys == f"order-{order['id']}"
        assert message.tags == order["status"]
        assert float(order["amount"]) > 0
        assert len(order["currency"]) == 3
        assert order["customer"]
    assert {message.tags for message in messages} == {"paid", "refunded", "cancelled"}


def test_some_orders_are_not_json_or_cannot_be_paid() -> None:
    """The first one appears within seconds, so that a viewer need not wait."""
    messages = take(900)
    poison = [number for number, message in enumerate(messages, 1) if not is_json(message)]
    failing = [json.loads(message.body) for message in messages if is_json(message)]
    failing = [order for order in failing if "simulated_payment_failures" in order]

    assert poison == list(range(25, 900, 90))
    assert all(message.body for message in messages)  # RocketMQ rejects an empty body
    assert {order["status"] for order in failing} == {"paid"}
    assert {1, 2, 99} == {order["simulated_payment_failures"] for order in failing}


def test_orders_alternate_between_topics() -> None:
    assert [message.topic for message in take(4, "a", "b")] == ["b", "a", "b", "a"]


def test_the_rate_of_orders_varies_and_has_bursts() -> None:
    times = [step / 10 for step in range(1200)]
    rates = [(after - before) * 10 for before, after in itertools.pairwise(map(orders_due, times))]

    assert min(rates) > 20
    assert sum(1 for rate in rates if rate > 100) / len(rates) == pytest.approx(2.5 / BURST_EVERY_SECONDS, rel=0.2)
    assert orders_due(0) == 0
