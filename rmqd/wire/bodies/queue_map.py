"""MessageQueue in JSON: as an object, and as the key of a map, which fastjson writes as `{{…}:value}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqd.wire import fields
from rmqd.wire.loose_json import ObjectKey
from rmqd.wire.message_queue import MessageQueue


def queue_to_dict(queue: MessageQueue) -> dict[str, Any]:
    """Return the JSON object of a queue."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_from_dict(value: object) -> MessageQueue:
    """Read the JSON object of a queue. Raises ProtocolError."""
    data = fields.as_object(value, "a message queue")
    return MessageQueue(fields.text(data, "topic"), fields.text(data, "brokerName"), fields.integer(data, "queueId"))


def queue_map_to_dict(values: Mapping[MessageQueue, Any]) -> dict[ObjectKey, Any]:
    """Convert a map by queue for `loose_json.dumps`."""
    return {ObjectKey.of(queue_to_dict(queue)): value for queue, value in values.items()}


def queue_map_from_dict(value: object, what: str) -> dict[MessageQueue, Any]:
    """Read a map by queue. Its values remain JSON. Raises ProtocolError."""
    return {queue_from_dict(fields.as_key(key, what)): item for key, item in fields.as_object(value, what).items()}


def offsets_from_dict(value: object, what: str) -> dict[MessageQueue, int]:
    """Read a map from queue to offset. Raises ProtocolError."""
    return {queue: fields.as_integer(item, what) for queue, item in queue_map_from_dict(value, what).items()}
