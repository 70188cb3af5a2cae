"""Made-up figures for tests of the demo's output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rmqd.demo.demo_orders import DeadLetteredOrder, HandledOrder
from rmqd.demo.demo_view import DemoFigures, DemoQueueRow, MessageAccount

ORDER = b'{"customer": "Ada Lovelace", "amount": "12.50", "currency": "EUR"}'


def handled(number: int, verdict: str = "acked", body: bytes = ORDER, attempt: int = 1) -> HandledOrder:
    """Return one call of the handler."""
    return HandledOrder(f"order-{number}", "paid", body, attempt, verdict)


def make_figures(**changed: Any) -> DemoFigures:
    """Return the figures of a busy moment, with changes."""
    figures = DemoFigures(
        elapsed_seconds=83.4,
        state="running",
        problem="",
        sent=4321,
        failed_sends=0,
        account=MessageAccount(stored=4321, acknowledged=4200, dead_letters=9, waiting=12, unhandled=100),
        retried=150,
        sent_per_second=41.7,
        handled_per_second=99.2,
        max_lag=250,
        sent_rate_history=[40.0, 41.0, 160.0, 42.0] * 30,
        handled_rate_history=[40.0, 99.0, 99.0, 42.0] * 30,
        lag_history=[0.0, 100.0, 250.0, 80.0] * 30,
        queues=[DemoQueueRow(f"orders {number}", "handling", 1050, 25, 25) for number in range(4)]
        + [DemoQueueRow("retries 0", "waiting", None, 0, 0)],
        handled=[handled(4321 - number) for number in range(40)],
        dead_letters=[DeadLetteredOrder(f"order-{number}", "not JSON: Expecting value") for number in range(9)],
    )
    return replace(figures, **changed)
