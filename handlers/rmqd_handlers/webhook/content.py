"""What a call carries: the bodies as they are, rmqd's records as JSON, or CloudEvents 1.0."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

from rmqd import Message
from rmqd_handlers.message_values import InvalidBodyError, time_of
from rmqd_handlers.record import to_record

Format = Literal["body", "json", "cloudevents", "cloudevents_binary"]
ONE_BY_ONE: Final = ("body", "cloudevents_binary")
"""Formats whose fields are headers, so that a call has one message."""

# the printable characters of ASCII that CloudEvents leaves in a header as they are: all but the blank, " and %
_PLAIN: Final = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")


@dataclass(frozen=True, slots=True)
class Call:
    """One POST, before it is signed."""

    id: str
    """The same whenever the same messages are sent again."""
    content: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Contents:
    """How messages become calls."""

    format: Format
    content_type: str
    event_source: str | None
    event_type: str

    def of_one(self, message: Message) -> Call:
        """A call with one message. Raises InvalidBodyError where that cannot be, as where the body is not JSON."""
        if self.format == "body":
            return self._call(message, {"Content-Type": self.content_type} | _fields(message))
        if self.format == "cloudevents_binary":
            attributes = {f"ce-{name}": as_header(value) for name, value in self._attributes(message).items()}
            return self._call(message, {"Content-Type": self.content_type} | attributes)
        if self.format == "json":
            return self._call(message, {"Content-Type": "application/json"}, _as_json(to_record(message)))
        headers = {"Content-Type": "application/cloudevents+json"}
        return self._call(message, headers, _as_json(self._event(message)))

    def of_many(self, messages: Sequence[Message]) -> Call:
        """A call with all of them, as a JSON array."""
        call_id = hashlib.sha256(" ".join(message.msg_id for message in messages).encode()).hexdigest()[:32]
        if self.format == "json":
            content, kind = _as_json([to_record(message) for message in messages]), "application/json"
        else:
            content = _as_json([self._event(message) for message in messages])
            kind = "application/cloudevents-batch+json"
        return Call(call_id, content, {"Content-Type": kind})

    def check(self, message: Message) -> None:
        """Raises InvalidBodyError where the message cannot be one of many."""
        if self.format == "cloudevents":
            self._event(message)

    def _call(self, message: Message, headers: dict[str, str], content: bytes | None = None) -> Call:
        # the id is a producer's property, and may be any text
        return Call(as_header(message.msg_id), bytes(message.body) if content is None else content, headers)

    def _attributes(self, message: Message) -> dict[str, str]:
        attributes = {
            "specversion": "1.0",
            "id": message.msg_id,
            "source": self.event_source or f"/topics/{quote(message.topic)}",
            "type": self.event_type,
            "time": time_of(message.born_timestamp).isoformat(timespec="milliseconds"),
            "topic": message.topic,
        }
        more = {"subject": message.keys, "tags": message.tags}
        return attributes | {name: value for name, value in more.items() if value}

    def _event(self, message: Message) -> dict[str, Any]:
        event: dict[str, Any] = {**self._attributes(message), "datacontenttype": self.content_type}
        body = bytes(message.body)
        if is_json(self.content_type):
            try:
                event["data"] = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise InvalidBodyError(f"the body is not JSON: {error}") from None
            return event
        try:
            event["data"] = body.decode()
        except UnicodeDecodeError:
            event["data_base64"] = base64.b64encode(body).decode()
        return event


def is_json(content_type: str) -> bool:
    """Whether a media type is JSON, parameters aside."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


def as_header(value: str) -> str:
    """A text as the value of a header: what is not printable ASCII is percent-encoded, as CloudEvents has it."""
    return quote(value, safe=_PLAIN)


def _fields(message: Message) -> dict[str, str]:
    fields = {"Topic": message.topic, "Keys": message.keys, "Tags": message.tags, "Message-Id": message.msg_id}
    return {f"X-RocketMQ-{name}": as_header(value) for name, value in fields.items() if value}


def _as_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")
