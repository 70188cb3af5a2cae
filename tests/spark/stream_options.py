"""Options of streams that query an embedded broker at every poll, and helpers to compare the results."""

from __future__ import annotations

import json

from tests.spark.embedded_broker import BROKER, EmbeddedBroker


def options(broker: EmbeddedBroker, **more: str) -> dict[str, str]:
    what = {} if "subscribePattern" in more else {"subscribe": "orders"}
    return {
        "nameserver": broker.nameserver, "startingOffsets": "earliest", "fetchOffset.intervalMs": "0",
        "routeRefreshMs": "0", "unavailableToleranceMs": "0", **what, **more,
    }  # fmt: skip


def grouped(broker: EmbeddedBroker, **more: str) -> dict[str, str]:
    return {**options(broker, groupId="reports", **more), "startingOffsets": "committed"}


def numbers(queue_id: int, start: int, end: int) -> list[str]:
    return [f"{queue_id}:{number}" for number in range(start, end)]


def place(text: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(text)["q"]["orders"][BROKER]
    return found
