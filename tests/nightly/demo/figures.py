"""Figures made up for tests of what shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rmqd.demo.demo_orders import DeadLettered, HandledOrder
from rmqd.demo.demo_view import Account, DemoFigures, QueueRow

ORDER = b'{"customer": "Ada Lovelace", "amount": "12.50", "currency": "EUR"}'


def handled(number: int, verdict: str = "acked", body: bytes = ORDER, attempt: int = 1) -> HandledOrder:
    """A call of the handler."""
    return HandledOrder(f"order-{number}", "paid", body, attempt, verdict)


def make_figures(**changed: Any) -> DemoFigures:
    """A busy moment, with some of it changed."""
    figures = DemoFigures(
        elapsed_seconds=83.4,
        state="running",
        problem="",
        sent=4321,
        failed=0,
        account=Account(stored=4321, acknowledged=4200, dead_letters=9, waiting=12, behind=100),
        retried=150,
        in_rate=41.7,
        out_rate=99.2,
        max_lag=250,
        in_history=[40.0, 41.0, 160.0, 42.0] * 30,
        out_history=[40.0, 99.0, 99.0, 42.0] * 30,
        lag_history=[0.0, 100.0, 250.0, 80.0] * 30,
        queues=[QueueRow(f"orders {number}", "handling", 1050, 25, 25) for number in range(4)]
        + [QueueRow("retries 0", "waiting", None, 0, 0)],
        handled=[handled(4321 - number) for number in range(40)],
        dead_letters=[DeadLettered(f"order-{number}", "not JSON: Expecting value") for number in range(9)],
    )
    return replace(figures, **changed)
