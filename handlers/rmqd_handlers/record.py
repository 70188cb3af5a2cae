"""A message as one line of JSON: the format that `jsonl` writes and `exec` passes on."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

from rmqd import Message

from .message_values import FIELDS, field_of


def to_json_lines(messages: Iterable[Message]) -> bytes:
    """Return the messages as JSON, one per line, each with a newline at its end."""
    return "".join(f"{json.dumps(to_record(message), ensure_ascii=False)}\n" for message in messages).encode()


def to_record(message: Message) -> dict[str, object]:
    """Return the fields of one message by RocketMQ's names. Timestamps are milliseconds since 1970.

    A UTF-8 body has the key `body`, any other the key `body_base64`. So a reader that expects the other key finds it
    missing, instead of a wrong text.
    """
    record: dict[str, object] = {name: field_of(message, name) for name in FIELDS if name != "body"}
    body = bytes(message.body)
    try:
        record["body"] = body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(body).decode("ascii")
    return record
