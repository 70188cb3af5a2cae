"""Reads values from messages by expressions such as `$.order.id` and `msg_id`, and converts messages to JSON lines.

The handler `jsonl` writes JSON lines, and `exec` passes them to its command. Decimals have up to 38 digits, as in Arrow
and Spark.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Annotated, Any, Final, cast

from pydantic import BeforeValidator

from rmqd import Message
from rmqd.handler_api.destinations.exact_json import parse_exact_json

MAX_DIGITS: Final = 38
_WIDEST: Final = Context(prec=MAX_DIGITS)  # Python's default context has 28 digits


def with_scale(number: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return the number with `scale` digits after the decimal point.

    None if the number has more digits after the point, has more than `precision` digits, or is not finite.
    """
    try:
        made = number.quantize(Decimal(1).scaleb(-scale), context=_WIDEST)
    except InvalidOperation:  # more than 38 digits
        return None
    return made if made == number and len(made.as_tuple().digits) <= precision else None


def of_unscaled(unscaled: int, scale: int) -> Decimal:
    """Return `unscaled` as a decimal number: its last `scale` digits are after the decimal point."""
    return Decimal(f"{unscaled}E{-scale}")  # `Decimal.scaleb` would round to the context's precision


def to_json_lines(messages: Iterable[Message]) -> bytes:
    """Return the messages as JSON, one per line, each with a newline at its end."""
    return "".join(f"{json.dumps(to_record(message), ensure_ascii=False)}\n" for message in messages).encode()


def to_record(message: Message) -> dict[str, object]:
    """Return the fields of one message by RocketMQ's names. Timestamps are milliseconds since 1970.

    A UTF-8 body has the key `body`, any other body the key `body_base64`. So a reader that expects text finds no `body`
    instead of a wrong text.
    """
    record: dict[str, object] = {name: field_of(message, name) for name in FIELDS if name != "body"}
    body = bytes(message.body)
    try:
        record["body"] = body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(body).decode("ascii")
    return record


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
    """A message cannot be written, because its body or a value is missing, invalid, or refused by the destination."""


@dataclass(frozen=True, slots=True)
class Value:
    """A parsed expression. Calling it with a message returns the message's value; None if the value is missing."""

    text: str
    """The expression in the options."""
    path: tuple[str | int, ...] | None = None
    """Keys and indexes into the body's JSON; None for a field of the message."""
    of_property: str | None = None

    def __call__(self, opened: ParsedMessage) -> Any:
        """Return the message's value. A path into the body raises InvalidBodyError if the body is not JSON."""
        if self.path is not None:
            return _follow(opened.document(), self.path)
        if self.of_property is not None:
            return opened.message.properties.get(self.of_property)
        return field_of(opened.message, self.text)

    def required(self, opened: ParsedMessage, why: str = "") -> Any:
        """Return the value. Raises InvalidBodyError if it is missing; `why` is appended to the error's text."""
        if (value := self(opened)) is None:
            raise InvalidBodyError(f"the message has no {self.text}{why}")
        return value

    @property
    def is_timestamp(self) -> bool:
        """Whether the value is a RocketMQ timestamp, in milliseconds since 1970."""
        return self.text in TIMESTAMPS


class ParsedMessage:
    """A message whose body is parsed at most once."""

    __slots__ = ("_document", "_is_parsed", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._is_parsed = False
        self._document: Any = None

    def document(self) -> Any:
        """Return the body's JSON, with Decimal for numbers with a decimal point. Raises InvalidBodyError."""
        if not self._is_parsed:
            self._document = parse_json(bytes(self.message.body))
            self._is_parsed = True
        return self._document


def field_of(message: Message, name: str) -> Any:
    """Return the field `name`, one of `FIELDS`, with properties as a dict and the body as bytes."""
    value = getattr(message, name)
    return dict(value) if name == "properties" else bytes(value) if name == "body" else value


def parse_json(body: bytes) -> Any:
    """Parse standard JSON, without NaN. Raises InvalidBodyError."""
    try:
        return parse_exact_json(body)
    except ValueError as error:
        raise InvalidBodyError(f"the body is not JSON: {error}") from None


def parse_value(text: object) -> Value:
    if isinstance(text, str):
        if text in FIELDS:
            return Value(text)
        if text.startswith("properties.") and text != "properties.":
            return Value(text, of_property=text.removeprefix("properties."))
        steps = list(_STEP.finditer(text))
        if text == f"${''.join(step[0] for step in steps)}":
            return Value(text, path=tuple(map(_key, steps)))
    raise ValueError(f"{text!r} is not a valid expression; expected {ACCEPTED}")


MessageValue = Annotated[Value, BeforeValidator(parse_value, json_schema_input_type=str)]


def number_in(value: Any) -> int | Decimal | None:
    """Return a number, or a text that is a number, as a finite number; None for other values, such as booleans."""
    if isinstance(value, int):
        return None if isinstance(value, bool) else value
    if not isinstance(value, Decimal):
        try:
            value = Decimal(as_text(value))
        except InvalidOperation:
            return None
    return value if value.is_finite() else None


def in_utc(time: datetime) -> datetime:
    """Return a time in UTC. A time without a zone is in UTC already."""
    return time.astimezone(UTC) if time.tzinfo is not None else time.replace(tzinfo=UTC)


def as_text(value: Any) -> str:
    """Return a value as text: a text or body unchanged, others as JSON. Raises InvalidBodyError for invalid UTF-8."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidBodyError(f"the body is not UTF-8: {error}") from None
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:  # JSON can contain a lone surrogate
                raise InvalidBodyError(f"a text that is not UTF-8: {error}") from None
        return value
    return str(value) if isinstance(value, Decimal) else to_json(value)


def as_bytes(value: Any) -> bytes:
    """Return a value as bytes: the unchanged body, or the bytes of `as_text`."""
    return value if isinstance(value, bytes) else as_text(value).encode()


def as_json(value: Any) -> str:
    """Return a value as JSON. A body must be JSON already, and is only decoded. Raises InvalidBodyError."""
    return as_text(value) if isinstance(value, bytes) else to_json(value)


def to_json(value: Any) -> str:
    """Return JSON with the original digits of each Decimal. Raises InvalidBodyError if it is nested too deeply."""
    try:
        return _to_json(value)
    except RecursionError:
        raise InvalidBodyError("the body is nested too deeply") from None


def time_of(milliseconds: int) -> datetime:
    """Return the time of a RocketMQ timestamp. Raises InvalidBodyError if it is outside the calendar."""
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise InvalidBodyError(f"{milliseconds} ms since 1970 is outside the calendar") from None


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
