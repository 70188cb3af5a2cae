"""Values of messages for SQLAlchemy, by the type of their column."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from sqlalchemy import types

from rmqd_handlers.message_values import (
    InvalidBodyError,
    Opened,
    Value,
    as_bytes,
    as_json,
    as_text,
    time_of,
    to_json,
)

_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]{1,1000}\s*")
_TRUE: Final = ("true", "t", "yes", "y", "on", "1")
_FALSE: Final = ("false", "f", "no", "n", "off", "0")
_NOT_READ: Final = object()


@dataclass(frozen=True, slots=True)
class JsonText:
    """Text that is already JSON, for a JSON column."""

    text: str


def json_serializer(value: object) -> str:
    """Return JSON text. SQLAlchemy uses this function."""
    return value.text if isinstance(value, JsonText) else to_json(value)


def for_column(name: str, kind: types.TypeEngine[Any], value: Value) -> Callable[[Opened], Any]:
    """Return a function that returns a column's value of a message. It raises InvalidBodyError, whose text contains no
    value.
    """
    read, what = _reader(kind, is_timestamp=value.is_timestamp)

    def part(opened: Opened) -> Any:
        found = value(opened)
        if found is None:
            return None
        made = read(found)
        if made is _NOT_READ:
            raise InvalidBodyError(f"the column {name} needs {what}, but {value.text} is {_kind(found)}")
        return made

    return part


def for_parameter(value: Value, *, has_decimals: bool) -> Callable[[Opened], Any]:
    """Return a function that returns a parameter's value of a message. There is no column, so the value's type
    decides.
    """

    def part(opened: Opened) -> Any:
        found = value(opened)
        if isinstance(found, Decimal):
            return found if has_decimals else float(found)
        return found if found is None or isinstance(found, bool | int | bytes) else as_text(found)

    return part


def _reader(kind: types.TypeEngine[Any], *, is_timestamp: bool) -> tuple[Callable[[Any], Any], str]:
    """Return the function that converts a value for a column, or returns `_NOT_READ` if it cannot, and the expected
    form.
    """
    if isinstance(kind, types.JSON):
        return lambda value: JsonText(as_json(value)), "JSON"
    if isinstance(kind, types.ARRAY):
        return _array_reader(kind), "a list"
    if isinstance(kind, types.DateTime | types.Date) and is_timestamp:
        to_kind = _naive_or_aware(kind) if isinstance(kind, types.DateTime) else datetime.date
        return lambda value: to_kind(time_of(value)), "a time"
    for types_of, read, what in _READERS:
        if isinstance(kind, types_of):
            return read, what
    if isinstance(kind, types.DateTime):
        to_kind = _naive_or_aware(kind)
        return lambda value: _by(lambda text: to_kind(datetime.fromisoformat(text)), value), "a time by ISO 8601"
    return as_text, "a text"


def _array_reader(kind: types.ARRAY[Any]) -> Callable[[Any], Any]:
    read, _ = _reader(kind.item_type, is_timestamp=False)

    def read_list(value: Any) -> Any:
        if not isinstance(value, list):
            return _NOT_READ
        made = [None if one is None else read_list(one) if isinstance(one, list) else read(one) for one in value]
        return _NOT_READ if any(one is _NOT_READ for one in made) else made

    return read_list


def _naive_or_aware(kind: types.DateTime) -> Callable[[datetime], datetime]:
    """Convert times to UTC in a column without time zones. A text without a zone is in UTC."""

    def to_kind(at: datetime) -> datetime:
        in_utc = at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return in_utc if kind.timezone else in_utc.replace(tzinfo=None)

    return to_kind


def _by(parse: Callable[[str], Any], value: Any) -> Any:
    """Parse a text, or a body as text."""
    try:
        return parse(as_text(value)) if isinstance(value, str | bytes) else _NOT_READ
    except (ValueError, OverflowError, InvalidOperation):
        return _NOT_READ


def _integer(value: Any) -> Any:
    if isinstance(value, int):
        return int(value)  # true becomes 1, because some databases have no booleans
    return _by(lambda text: int(text) if _INTEGER.fullmatch(text) else _NOT_READ, value)


def _number(value: Any) -> Any:
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return value
    return _by(_finite, value)


def _finite(text: str) -> Any:
    number = Decimal(text.strip())
    return number if number.is_finite() else _NOT_READ


def _float(value: Any) -> Any:
    number = _number(value)
    try:
        made = _NOT_READ if number is _NOT_READ else float(number)
    except OverflowError:
        return _NOT_READ
    return _NOT_READ if made is not _NOT_READ and not math.isfinite(made) else made


def _boolean(value: Any) -> Any:
    text = as_text(value).strip().lower() if isinstance(value, bool | int | str | bytes) else ""
    return True if text in _TRUE else False if text in _FALSE else _NOT_READ


def _kind(value: Any) -> str:
    names = {bool: "a boolean", str: "another text", bytes: "another text", list: "a list", dict: "an object"}
    return names.get(type(value), "another number")


_READERS: Final[tuple[tuple[type[types.TypeEngine[Any]], Callable[[Any], Any], str], ...]] = (
    (types.Boolean, _boolean, "true or false"),
    (types.Integer, _integer, "a whole number"),
    (types.Float, _float, "a number"),
    (types.Numeric, _number, "a number"),
    (types.LargeBinary, as_bytes, "bytes"),
    (types.Date, lambda value: _by(date.fromisoformat, value), "a date by ISO 8601"),
    (types.Time, lambda value: _by(time.fromisoformat, value), "a time of day by ISO 8601"),
    (types.Uuid, lambda value: _by(uuid.UUID, value), "a UUID"),
)
