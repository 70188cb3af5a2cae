"""Values of a message by an expression: `$.order.id` in a body that is JSON, `msg_id`, `properties.colour`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, NoReturn, cast

from pydantic import BeforeValidator

from rmqd import Message

FIELDS: Final = (
    "topic broker_name queue_id queue_offset msg_id offset_msg_id keys tags properties born_timestamp store_timestamp "
    "born_host reconsume_times body"
).split()
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMPS: Final = ("born_timestamp", "store_timestamp")
ACCEPTED: Final = (
    f"a JSON path into the body such as $.order.id or $.items[0], properties.NAME, or one of {', '.join(FIELDS)}"
)
_STEP: Final = re.compile(r"\.([^.\[\]'\"$]+)|\[([0-9]+)\]|\['([^']+)'\]|\[\"([^\"]+)\"\]")


class InvalidBodyError(ValueError):
    """The message is not what an expression, or the other side, reads it as."""


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression names. Calling it with an `Opened` message gives the value; None where it is not there."""

    text: str
    """The expression as it was written."""
    path: tuple[str | int, ...] | None = None
    """Keys and indexes into the JSON of the body; None for a field of the message."""
    of_property: str | None = None

    def __call__(self, opened: Opened) -> Any:
        """Raises InvalidBodyError where a path is asked for and the body is not JSON."""
        if self.path is not None:
            return _follow(opened.document(), self.path)
        if self.of_property is not None:
            return opened.message.properties.get(self.of_property)
        return field_of(opened.message, self.text)

    @property
    def is_timestamp(self) -> bool:
        """Whether it is one of RocketMQ's times, in milliseconds since 1970."""
        return self.text in TIMESTAMPS


class Opened:
    """A message whose body is parsed at most once."""

    __slots__ = ("_document", "_is_parsed", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._is_parsed = False
        self._document: Any = None

    def document(self) -> Any:
        """The body as JSON, numbers with a point as Decimal. Raises InvalidBodyError."""
        if not self._is_parsed:
            self._document = parse_json(bytes(self.message.body))
            self._is_parsed = True
        return self._document


def field_of(message: Message, name: str) -> Any:
    """A field of `FIELDS`, as plain data."""
    value = getattr(message, name)
    return dict(value) if name == "properties" else bytes(value) if name == "body" else value


def parse_json(body: bytes) -> Any:
    """Parse JSON by its standard, which has no NaN. Raises InvalidBodyError."""
    try:
        return json.loads(body, parse_float=Decimal, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidBodyError("the body is not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise InvalidBodyError(f"the body is not JSON: {error}") from None


def parse_value(text: object) -> Value:
    """Read an expression. Raises ValueError."""
    if isinstance(text, str):
        if text in FIELDS:
            return Value(text)
        if text.startswith("properties.") and text != "properties.":
            return Value(text, of_property=text.removeprefix("properties."))
        steps = list(_STEP.finditer(text))
        if text == f"${''.join(step[0] for step in steps)}":
            return Value(text, path=tuple(map(_key, steps)))
    raise ValueError(f"{text!r} names no value; accepted: {ACCEPTED}")


MessageValue = Annotated[Value, BeforeValidator(parse_value, json_schema_input_type=str)]


def as_text(value: Any) -> str:
    """A value as text: JSON but for texts and bodies. Raises InvalidBodyError for what UTF-8 cannot be, or say."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidBodyError(f"the body is not UTF-8: {error}") from None
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:  # JSON can name half of a character
                raise InvalidBodyError(f"a text that is not UTF-8: {error}") from None
        return value
    return str(value) if isinstance(value, Decimal) else to_json(value)


def as_bytes(value: Any) -> bytes:
    """A value as bytes: the body as it is, and what `as_text` makes of others."""
    return value if isinstance(value, bytes) else as_text(value).encode()


def as_json(value: Any) -> str:
    """A value as JSON; the body is taken for JSON as it is. Raises InvalidBodyError."""
    return as_text(value) if isinstance(value, bytes) else to_json(value)


def to_json(value: Any) -> str:
    """JSON, a Decimal as the number that it was read from. Raises InvalidBodyError if it is nested too deeply."""
    try:
        return _to_json(value)
    except RecursionError:
        raise InvalidBodyError("the body is nested too deeply") from None


def time_of(milliseconds: int) -> datetime:
    """A time of RocketMQ's. Raises InvalidBodyError for one that no calendar has."""
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise InvalidBodyError(f"{milliseconds} ms since 1970 is no time of this calendar") from None


def _to_json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(str(key))}:{_to_json(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_to_json, value)) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def _key(step: re.Match[str]) -> str | int:
    return int(step[2]) if step[2] is not None else cast(str, step[1] or step[3] or step[4])


def _follow(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        if isinstance(key, str):
            value = value.get(key) if isinstance(value, dict) else None
        else:
            value = value[key] if isinstance(value, list) and key < len(value) else None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no value of JSON")
