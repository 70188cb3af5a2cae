"""Messages and batches with constant fields, so that tests of handlers can compare the written values."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rmqd import Batch, Message, MessageQueue, testing
from rmqd.handler_api.decisions import decision_for_error

QUEUE = MessageQueue("orders", "broker-a", 3)


def make_message(
    body: bytes = b"",
    *,
    keys: str | None = None,
    tags: str | None = None,
    queue_offset: int = 0,
    properties: Mapping[str, str] | None = None,
) -> Message:
    """A message of the queue `QUEUE`."""
    return testing.make_message(
        body,
        topic=QUEUE.topic,
        keys=keys,
        tags=tags,
        properties=properties,
        msg_id=f"7F00000100002A139A55{queue_offset:012X}",
        queue_id=QUEUE.queue_id,
        queue_offset=queue_offset,
        commit_log_offset=queue_offset * 1000,
        born_timestamp=1_767_225_600_000,
        born_host="127.0.0.1:12345",
        store_timestamp=1_767_225_600_005,
    )


def make_batch(*messages: Message) -> Batch:
    """A batch of these messages."""
    return Batch(list(messages), QUEUE)


def batch_of(*bodies: bytes, first: int = 0, keys: str | None = None) -> Batch:
    """A batch of messages with these bodies, from the offset `first` on."""
    return make_batch(*(make_message(body, queue_offset=place, keys=keys) for place, body in enumerate(bodies, first)))


def orders(*documents: object) -> Batch:
    """A batch whose bodies are these, as JSON or as they are."""
    return batch_of(*(one if isinstance(one, bytes) else json.dumps(one).encode() for one in documents))


def decided(batch: Batch) -> dict[int, tuple[str, str]]:
    """The outcome of each message and its reason, by index in the batch."""
    return {place: (one.outcome.value, one.reason) for place, one in batch.decisions().items()}


def meant(error: BaseException) -> str:
    """The outcome of a message if its handler raises this: "again" if it waits and no attempt is counted."""
    return decision_for_error(error).outcome.value
