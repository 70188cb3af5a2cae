"""MessageStores for tests, with a clock that does not advance."""

from __future__ import annotations

from pathlib import Path

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.store.data_dir import DataDir
from rmqd.broker.store.journal import MemoryRecordLog, NoJournal
from rmqd.broker.store.message_store import MessageStore, PutResult
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage
from rmqd.wire.messages.message import Message
from tests.clock import ManualClock

ADDRESS = "127.0.0.1:10911"


def in_memory(settings: BrokerSettings | None = None, clock: ManualClock | None = None) -> MessageStore:
    """Return a store without a folder."""
    return MessageStore(clock or ManualClock(), ADDRESS, settings or BrokerSettings(), MemoryRecordLog(), NoJournal())


def in_folder(
    directory: Path, settings: BrokerSettings | None = None, clock: ManualClock | None = None
) -> tuple[MessageStore, DataDir]:
    """Return a store in a folder, and its DataDir, which the caller must close."""
    data_dir = DataDir(directory)
    store = MessageStore(clock or ManualClock(), ADDRESS, settings or BrokerSettings(), data_dir, data_dir)
    return store, data_dir


def put(
    store: MessageStore,
    body: bytes | str = b"x",
    *,
    topic: str = "T",
    queue_id: int = 0,
    tag: str = "",
    tags_code: int | None = None,
) -> PutResult:
    """Store a message."""
    data = body.encode() if isinstance(body, str) else body
    properties = {"TAGS": tag} if tag else {}
    return store.put(StoredMessage(topic=topic, queue_id=queue_id, body=data, properties=properties), tags_code)


def messages(*records: bytes) -> list[Message]:
    """Decode records."""
    return decode_messages(b"".join(records), MessageQueue("T", "broker-a", 0)).messages


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[str]:
    """Return the bodies of a queue, read as a consumer reads them."""
    at, found = store.min_offset(topic, queue_id), []
    while at < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, at, 32)
        found += [message.body.decode() for message in messages(*result.records)]
        at = result.next_begin_offset
    return found
