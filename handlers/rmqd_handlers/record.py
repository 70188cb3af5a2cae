"""A message as one line of JSON, the form that `jsonl` writes and `exec` passes on."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

from rmqd import Message

from .message_values import FIELDS, field_of


def to_json_lines(messages: Iterable[Message]) -> bytes:
    """The messages as JSON, one a line, each line ended by a newline."""
    return "".join(f"{json.dumps(to_record(message), ensure_ascii=False)}\n" for message in messages).encode()


def to_record(message: Message) -> dict[str, object]:
    """The fields of one message by RocketMQ's names; timestamps are milliseconds since 1970.

    A body that is UTF-8 stands under `body`, any other under `body_base64`: a reader that looks for the wrong
    one gets a missing key, never a wrong text.
    """
    record: dict[str, object] = {name: field_of(message, name) for name in FIELDS if name != "body"}
    body = bytes(message.body)
    try:
        record["body"] = body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(body).decode("ascii")
    return record
