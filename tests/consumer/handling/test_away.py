"""Handlers whose database is unavailable: messages wait for it, and no attempt counts."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd import Batch
from rmqd.testing import RocketMQ

MODES: list[dict[str, Any]] = [
    {},
    {"consume_mode": "orderly"},
    {"consume_mode": "pop"},
    {"order_by": "keys"},
    {"retry": {"in_place": 1, "backoff": "10ms"}},
]


@pytest.mark.parametrize("keys", MODES, ids=str)
def test_messages_wait_without_an_attempt_while_a_database_is_unavailable(keys: dict[str, Any]) -> None:
    seen: list[tuple[str, int]] = []

    async def handle(batch: Batch) -> None:
        seen.extend((message.body.decode(), message.reconsume_times) for message in batch)
        if len(seen) < 10:
            error = ConnectionError("the database is away")
            error.rmqd_wait_seconds = 0.1  # type: ignore[attr-defined]
            raise error

    with RocketMQ() as running:
        running.create_topic("orders")
        for number in range(3):
            running.send("orders", str(number), keys=str(number))
        result = running.run_handler(handle, topic="orders", group="g", max_reconsume_times=1, **keys)
        assert running.dead_letters("g") == []

    assert sorted(message.body for message in result.acked) == [b"0", b"1", b"2"]
    assert {attempts for _, attempts in seen} == {0}
