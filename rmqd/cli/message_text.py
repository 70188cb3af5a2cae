"""Messages of a cluster as text, and as JSON."""

from __future__ import annotations

import base64
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rmqd.cli.render import count

if TYPE_CHECKING:
    from rmqd.client.looks.messages import FoundMessage


def as_document(message: FoundMessage) -> dict[str, Any]:
    """Return all fields. A UTF-8 body is text, another one `body_base64`."""
    document = asdict(message)
    body = document.pop("body")
    try:
        return document | {"body": body.decode()}
    except UnicodeDecodeError:
        return document | {"body_base64": base64.b64encode(body).decode()}


def as_lines(message: FoundMessage) -> list[str]:
    """Return a line for each field, and the body below them."""
    fields = {
        "id": message.msg_id,
        "offset id": message.offset_msg_id,
        "place": f"{message.topic}, {message.broker}, queue {message.queue}, offset {message.offset}",
        "keys": message.keys,
        "tags": message.tags,
        "born": f"{written_time(message.born_at_ms)} at {message.born_host}",
        "stored": f"{written_time(message.stored_at_ms)} at {message.store_host}",
        "reconsumed": count(message.reconsume_times, "time"),
        "properties": ", ".join(f"{name}={value}" for name, value in sorted(message.properties.items())),
    }
    return [*(f"{name + ':':<12} {value}" for name, value in fields.items() if value), "", body_text(message.body)]


def body_text(body: bytes) -> str:
    """Return the body if it is UTF-8, else its length."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"({count(len(body), 'byte')} that are not UTF-8)"


def written_time(at_ms: int) -> str:
    """Return a time in UTC with milliseconds; - for none."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "milliseconds") if at_ms > 0 else "-"
