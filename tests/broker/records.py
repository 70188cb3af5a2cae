"""The stored messages of a queue, and the ext fields of a send."""

from __future__ import annotations

from rmqd.broker.store.message_store import MessageStore
from rmqd.wire.messages.decode import decode_record
from rmqd.wire.messages.encode import StoredMessage
from rmqd.wire.messages.properties import format_properties

BORN_TIMESTAMP = 1_700_000_000_123


def records(store: MessageStore, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    """Return all messages of a queue."""
    queue = store.queue(topic, queue_id)
    if queue is None:
        return []
    found = [store.record(entry.commit_log_offset) for entry in queue.entries(queue.min_offset, queue.max_offset)]
    return [decode_record(record) for record in found if record is not None]


def letters(topic: str = "T", properties: dict[str, str] | str = "", **changed: object) -> dict[str, str]:
    """Return the ext fields of 310 and 320, without fields that are None."""
    if not isinstance(properties, str):
        properties = format_properties(properties)
    values: dict[str, object] = {
        "a": "p",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": BORN_TIMESTAMP,
        "h": 5,
        "i": properties,
        "j": 0,
        "k": "false",
        "m": "false",
    }
    return {key: str(value) for key, value in (values | changed).items() if value is not None}
