"""Orders of a shop, and their pace. The same seed gives the same orders."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from rmqd.client.sending.outgoing_message import OutgoingMessage

CUSTOMERS: Final = (
    "Ada Lovelace", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Alan Turing", "Katherine Johnson",
    "Zoë Müller", "Nguyễn An", "José García", "李雷", "Margaret Hamilton", "Dennis Ritchie",
)  # fmt: skip
CURRENCIES: Final = ("EUR", "USD", "GBP", "CHF", "CNY")
TAGS: Final = ("paid", "refunded", "cancelled")
TAG_WEIGHTS: Final = (85, 9, 6)

# The first order of each kind arrives within seconds.
POISON_EVERY, FIRST_POISON = 90, 25
FAILURE_EVERY, FIRST_FAILURE = 30, 12
HOPELESS_EVERY, FIRST_HOPELESS = 240, 40
HOPELESS_FAILURES: Final = 99

ORDERS_PER_SECOND: Final = 40.0
SWING: Final = 0.3  # change of the rate, up and down
SWING_SECONDS: Final = 23.0
FIRST_BURST_SECONDS: Final = 5.0
BURST_EVERY_SECONDS: Final = 20.0
BURST_SECONDS: Final = 2.5
BURST_ORDERS: Final = 320


class Orders:
    """Orders, numbered from 1. The topics take turns."""

    def __init__(self, topics: Sequence[str], seed: int | None = None) -> None:
        self._topics = topics
        self._random = random.Random(seed)
        self._number = 0

    def next(self) -> OutgoingMessage:
        """Return the next order. Some orders are unreadable, or their payment fails."""
        self._number += 1
        number = self._number
        tag = self._random.choices(TAGS, TAG_WEIGHTS)[0]
        failures = self._payment_failures(number)
        order = self._order(number, "paid" if failures else tag, failures)
        topic = self._topics[number % len(self._topics)]
        body = json.dumps(order, ensure_ascii=False)
        if number % POISON_EVERY == FIRST_POISON:
            body = self._random.choice(_POISONS)(body)
        return OutgoingMessage(topic, body.encode(), tags=order["status"], keys=f"order-{number}")

    def _order(self, number: int, status: str, failures: int) -> dict[str, Any]:
        order = {
            "id": number,
            "status": status,
            "customer": self._random.choice(CUSTOMERS),
            "amount": f"{self._random.lognormvariate(4, 1):.2f}",
            "currency": self._random.choice(CURRENCIES),
            "items": self._random.randint(1, 5),
        }
        return {**order, "simulated_payment_failures": failures} if failures else order

    def _payment_failures(self, number: int) -> int:
        if number % HOPELESS_EVERY == FIRST_HOPELESS:
            return HOPELESS_FAILURES
        return self._random.choice((1, 1, 1, 2)) if number % FAILURE_EVERY == FIRST_FAILURE else 0


_POISONS: Final[tuple[Callable[[str], str], ...]] = (
    lambda body: body[: len(body) // 2],
    lambda body: body.replace('"', "'"),
    lambda body: f"<order>{body}</order>",
    lambda body: f"{body}\n{body}",
)


def orders_due(elapsed_seconds: float) -> float:
    """Return how many orders are due by then: a steady stream that rises and falls, with bursts on top."""
    phase = 2 * math.pi * elapsed_seconds / SWING_SECONDS
    steady = ORDERS_PER_SECOND * (elapsed_seconds + SWING * SWING_SECONDS / (2 * math.pi) * (1 - math.cos(phase)))
    since = elapsed_seconds - FIRST_BURST_SECONDS
    if since < 0:
        return steady
    over, begun = divmod(since, BURST_EVERY_SECONDS)
    return steady + BURST_ORDERS * (over + min(begun / BURST_SECONDS, 1.0))
