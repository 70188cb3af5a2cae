"""A message as one line of JSON, the form that `jsonl` writes and `exec` passes on."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

from rmqd import Message


def to_json_lines(messages: Iterable[Message]) -> bytes:
    """The messages as JSON, one a line, each line ended by a newline."""
    return "".join(f"{json.dumps(to_record(message), ensure_ascii=False)}\n" for message in messages).encode()


def to_record(message: Message) -> dict[str, object]:
    """The fields of one message by RocketMQ's names; timestamps are milliseconds since 1970.

    A body that is UTF-8 stands under `body`, any other under `body_base64`: a reader that looks for the wrong
    one gets a missing key, never a wrong text.
    """
    record: dict[str, object] = {
        "topic": message.topic,
        "broker_name": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "keys": message.keys,
        "tags": message.tags,
        "properties": dict(message.properties),
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
        "born_host": message.born_host,
        "reconsume_times": message.reconsume_times,
    }
    body = bytes(message.body)
    try:
        record["body"] = body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(body).decode("ascii")
    return record
