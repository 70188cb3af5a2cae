"""Converts a message to topic, key, value and headers of a record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BeforeValidator

from rmqd import Message
from rmqd_handlers.message_values import InvalidBodyError, Opened, Value, as_text, parse_value

TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
Header = tuple[str, str | bytes | None]
_EXPRESSION: Final = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Record:
    """One message as a Kafka record."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[Header]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic's name, or a template of names: `orders`, `shop.{topic}`, `orders-{properties.region}`."""

    text: str
    """The text in the options."""
    parts: tuple[str | Value, ...]

    @property
    def fixed(self) -> str | None:
        """The name, if it is the same for all messages; else None."""
        return self.text if self.parts == (self.text,) else None

    def of(self, opened: Opened) -> str:
        """Return the name for a message. Raises InvalidBodyError if a value is missing, or the name is invalid for
        Kafka.
        """
        name = "".join(part if isinstance(part, str) else _given(part, opened) for part in self.parts)
        if not is_topic(name):
            raise InvalidBodyError(
                f"{name!r} is not a valid Kafka topic name; expected up to 249 letters, digits, '.', '_' and '-'"
            )
        return name


def parse_topic(text: object) -> TopicName:
    """Parse a topic's name or template. Raises ValueError."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a topic name")  # noqa: TRY004 - pydantic reads a ValueError
    places = _EXPRESSION.split(text)
    parts = tuple(parse_value(part) if number % 2 else part for number, part in enumerate(places) if number % 2 or part)
    if not is_topic("".join(part if isinstance(part, str) else "x" for part in parts)):
        raise ValueError(
            f"{text!r} is not a valid topic name; expected letters, digits, '.', '_' and '-', and values of the "
            "message in braces, such as orders-{tags} or shop.{properties.region}"
        )
    return TopicName(text, parts)


Topic = Annotated[TopicName, BeforeValidator(parse_topic, json_schema_input_type=str)]


def is_topic(name: str) -> bool:
    """Return whether Kafka accepts it as a topic's name."""
    return TOPIC.fullmatch(name) is not None and name not in (".", "..")


@dataclass(frozen=True, slots=True)
class Mapped:
    """How messages become records."""

    topic: TopicName
    key: str
    """keys, sharding_key, property:NAME or none."""
    value: Value
    headers: Mapping[str, Value] | None
    """None means the properties by name."""

    def of(self, message: Message) -> Record:
        """Return the record of a message. Raises InvalidBodyError if it cannot be one."""
        opened = Opened(message)
        value = self.value(opened)
        if value is None:
            raise InvalidBodyError(f"the message has no {self.value.text}")
        key = self._key(message)
        return Record(
            self.topic.of(opened),
            key.encode() if key else None,
            _as_bytes(value),
            self._headers(opened),
            message.born_timestamp,
        )

    def _key(self, message: Message) -> str | None:
        match self.key:
            case "none":
                return None
            case "keys":
                return message.keys
            case "sharding_key":
                return message.properties.get("__SHARDINGKEY")
        return message.properties.get(self.key.removeprefix("property:"))

    def _headers(self, opened: Opened) -> list[Header]:
        if self.headers is None:
            properties = {**opened.message.own_properties, "UNIQ_KEY": opened.message.msg_id}
            return list(properties.items())
        values = ((name, of(opened)) for name, of in self.headers.items())
        return [(name, _as_bytes(value)) for name, value in values if value is not None]


def _given(value: Value, opened: Opened) -> str:
    given = value(opened)
    if given is None:
        raise InvalidBodyError(f"the message has no {value.text}, which is part of its topic's name")
    return as_text(given)


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else as_text(value).encode()
