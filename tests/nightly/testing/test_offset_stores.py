"""Groups with an offset store: effect and offset are one transaction.

The core of these tests is in tests/testing/test_offset_stores.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from rmqd import Batch, Retry, handler
from rmqd.errors import ConfigError
from rmqd.handler_api.typed.typed_form import HandlerFormError
from rmqd.offset_stores import StoredProgress, offset_connection
from tests.testing.test_offset_stores import OWN, Effects, MemoryOffsets, Run, bodies, memory

__all__ = ["bodies", "memory"]

ADD = "tests.testing.test_offset_stores:add"


def test_a_previous_owner_has_no_effect(run_handler: Run, memory: type[MemoryOffsets], bodies: list[str]) -> None:
    """Another member acquires the queue, and finishes some messages, while calls are in flight."""
    calls: list[str] = []

    async def handle(batch: Batch) -> None:
        offset_connection().append(batch[0].body.decode())
        calls.append(batch[0].body.decode())
        if len(calls) == 3:
            for queue in memory.rows:
                memory.rows[queue] = "next", StoredProgress(5)

    run_handler(handle, topic="orders", group="g", consume_mode="orderly", **OWN)
    assert memory.effects == [*bodies[:2], *bodies[5:]]


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
def test_the_offset_does_not_pass_a_retried_message_of_a_batch(
    run_handler: Run, memory: type[MemoryOffsets], bodies: list[str], mode: str
) -> None:
    """In an orderly group, the messages after a retried message are repeated too."""
    seen: list[StoredProgress | None] = []

    async def handle(batch: Batch) -> None:
        seen.extend(progress for queue, (_, progress) in memory.rows.items() if queue.topic == "orders")
        for message in batch:
            if message.queue_offset % 4 == 1 and not message.reconsume_times:
                batch.retry(message)
                if mode == "orderly":
                    return
            else:
                offset_connection().append(message.body.decode())

    run_handler(handle, topic="orders", group="g", consume_message_batch_max_size=4, consume_mode=mode, **OWN)
    assert (sorted(memory.effects), memory.shrunk) == (bodies, [])
    assert (StoredProgress(1) if mode == "orderly" else StoredProgress(1, "2-3")) in seen


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"message_model": "broadcasting"}, "with message_model: broadcasting, whose members store offsets in files"),
        ({"consume_mode": "pop"}, "with consume_mode: pop, which has no offsets; expected broker"),
        (
            {"consume_mode": "orderly", "auto_commit": False},
            "with auto_commit: false, because each call is a transaction",
        ),
        ({"deduplicate": {}}, "with deduplicate, because committed messages are not redelivered"),
        ({"offset_store": {"plugin": "nowhere"}}, "no offset store 'nowhere' is installed; expected broker, "),
        ({"offset_store": {"plugin": ADD}}, "not an offset store; expected a class with open, close"),
        (
            {"offset_store": "elsewhere"},
            "'elsewhere' is not a mapping; expected broker | {plugin: elsewhere, options: {...}}",
        ),
        (
            {"offset_store": "broker"},
            "the handler takes offset_connection, which needs offset_store: {plugin: NAME}",
        ),
    ],
)
def test_impossible_settings_are_refused_with_the_expected_ones(run_handler: Run, keys: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run_handler(ADD, topic="orders", group="g", **{**OWN, **keys})
    assert problem in str(raised.value)


def test_a_synchronous_handler_cannot_get_a_connection(run_handler: Run) -> None:
    @handler(decode=bytes.decode)
    def plain(body: str, effects: Effects) -> None:
        raise Retry

    with pytest.raises(HandlerFormError, match=r"which only async handlers can use; expected async def"):
        run_handler(plain, topic="orders", group="g", **OWN)
