"""The content of an HTTP call (unchanged bodies, rmqd's records as JSON, or CloudEvents 1.0), and its signature."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

from rmqd import Message
from rmqd_handlers.message_values import parse_json, time_of, to_record

Scheme = Literal["standard_webhooks", "sha256"]
PREFIX: Final = "whsec_"


def key_of(secret: str, scheme: Scheme) -> bytes:
    """Return a secret's bytes. Raises ValueError if it is empty, or if a Standard Webhooks secret is not base64."""
    if not secret.removeprefix(PREFIX):
        raise ValueError("signing_secret is empty; expected a secret, or no signing_secret")
    if scheme == "standard_webhooks" and secret.startswith(PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except ValueError:
            raise ValueError(f"signing_secret starts with {PREFIX}, but the rest is not valid base64") from None
    return secret.encode()


def signed(scheme: Scheme, key: bytes, call_id: str, content: bytes) -> dict[str, str]:
    """Return the headers that sign a call, with the current time."""
    if scheme == "sha256":
        return {"X-Hub-Signature-256": f"sha256={hmac.new(key, content, hashlib.sha256).hexdigest()}"}
    timestamp = str(int(time.time()))
    over = b".".join((call_id.encode(), timestamp.encode(), content))
    digest = base64.b64encode(hmac.new(key, over, hashlib.sha256).digest()).decode()
    return {"webhook-id": call_id, "webhook-timestamp": timestamp, "webhook-signature": f"v1,{digest}"}


Format = Literal["body", "json", "cloudevents", "cloudevents_binary"]
ONE_BY_ONE: Final = ("body", "cloudevents_binary")
"""Formats that send a message's fields as HTTP headers, so that a call can have only one message."""

# the printable ASCII characters that CloudEvents leaves unchanged in a header: all except space, " and %
_PLAIN: Final = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")


@dataclass(frozen=True, slots=True)
class WebhookCall:
    """One POST, before it is signed."""

    id: str
    """An id that is the same whenever the same messages are sent again."""
    content: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Contents:
    format: Format
    content_type: str
    event_source: str | None
    event_type: str

    def call_for_message(self, message: Message) -> WebhookCall:
        """Return a call with one message. Raises InvalidBodyError if its body does not fit the format."""
        if self.format == "body":
            return self._call(message, {"Content-Type": self.content_type} | _fields(message))
        if self.format == "cloudevents_binary":
            attributes = {f"ce-{name}": as_header(value) for name, value in self._attributes(message).items()}
            return self._call(message, {"Content-Type": self.content_type} | attributes)
        kind = "application/cloudevents+json" if self.format == "cloudevents" else "application/json"
        return self._call(message, {"Content-Type": kind}, _encoded(self.item(message)))

    def of_many(self, items: Sequence[tuple[Message, str]]) -> WebhookCall:
        """Return a call with all messages, as a JSON array of their items."""
        call_id = hashlib.sha256(" ".join(message.msg_id for message, _ in items).encode()).hexdigest()[:32]
        kind = "application/cloudevents-batch+json" if self.format == "cloudevents" else "application/json"
        return WebhookCall(call_id, _encoded(f"[{','.join(item for _, item in items)}]"), {"Content-Type": kind})

    def item(self, message: Message) -> str:
        """Return the JSON object of a message. Raises InvalidBodyError if a body that must be JSON is not JSON."""
        return self._event(message) if self.format == "cloudevents" else _as_json(to_record(message))

    def _call(self, message: Message, headers: dict[str, str], content: bytes | None = None) -> WebhookCall:
        # the id is a property that the producer may set to any text
        return WebhookCall(as_header(message.msg_id), bytes(message.body) if content is None else content, headers)

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

    def _event(self, message: Message) -> str:
        event = {**self._attributes(message), "datacontenttype": self.content_type}
        body = bytes(message.body)
        if is_json(self.content_type):
            parse_json(body)
            # the body is inserted unchanged, so that its numbers keep all digits
            return f'{_as_json(event)[:-1]},"data":{body.decode(json.detect_encoding(body), "surrogatepass")}}}'
        try:
            event["data"] = body.decode()
        except UnicodeDecodeError:
            event["data_base64"] = base64.b64encode(body).decode()
        return _as_json(event)


def is_json(content_type: str) -> bool:
    """Return whether a content type is JSON. Parameters, such as the charset, are ignored."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


def as_header(value: str) -> str:
    """Return a text as a header value: characters other than printable ASCII are percent-encoded, as in CloudEvents."""
    return quote(value, safe=_PLAIN)


def _fields(message: Message) -> dict[str, str]:
    fields = {"Topic": message.topic, "Keys": message.keys, "Tags": message.tags, "Message-Id": message.msg_id}
    return {f"X-RocketMQ-{name}": as_header(value) for name, value in fields.items() if value}


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
