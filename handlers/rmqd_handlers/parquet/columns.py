"""The columns of the files with their types, and the conversion of messages' values to these types."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from rmqd import Message
from rmqd_handlers.message_values import InvalidBodyError, Opened, Value, as_text, exactly, time_of
from rmqd_handlers.option_kinds import decimal_of

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())
_TYPES: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": TIMESTAMP,
    "date": pa.date32(),
}
_OF_FIELDS: Final = {
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "reconsume_times": pa.int32(),
    "born_timestamp": TIMESTAMP,
    "store_timestamp": TIMESTAMP,
    "properties": _MAP,
    "body": pa.binary(),
}

Convert = Callable[[Any], Any]


def type_of(name: str) -> pa.DataType:
    """Return the type with this valid name."""
    digits = decimal_of(name)
    return _TYPES[name] if digits is None else pa.decimal128(*digits)


@dataclass(frozen=True, slots=True)
class ParquetColumn:
    """A column, and the source of its values."""

    name: str
    type: pa.DataType
    value: Callable[[Opened], Any]
    """Raises InvalidBodyError if the message has no value that fits the type."""


def mapped(values: Mapping[str, Value], types: Mapping[str, str]) -> tuple[ParquetColumn, ...]:
    """Return the columns of the options. Without a configured type, a field of the message has its natural type, other
    values are text.
    """
    columns = []
    for name, value in values.items():
        kind = type_of(types[name]) if name in types else _OF_FIELDS.get(value.text, pa.string())
        columns.append(ParquetColumn(name, kind, _converted(name, value, _converter(kind))))
    return tuple(columns)


def archived() -> tuple[ParquetColumn, ...]:
    """Return columns for all fields of a message, with the names and types of the pipeline `archive`."""

    def of(name: str, kind: pa.DataType, get: Callable[[Message], Any]) -> ParquetColumn:
        return ParquetColumn(name, kind, lambda opened: get(opened.message))

    return (
        of("broker", pa.string(), lambda message: message.broker_name),
        of("queue_id", pa.int32(), lambda message: message.queue_id),
        of("queue_offset", pa.int64(), lambda message: message.queue_offset),
        of("msg_id", pa.string(), lambda message: message.msg_id),
        of("offset_msg_id", pa.string(), lambda message: message.offset_msg_id),
        of("keys", pa.string(), lambda message: message.keys),
        of("tags", pa.string(), lambda message: message.tags),
        of("body", pa.binary(), lambda message: bytes(message.body)),
        of("properties", _MAP, lambda message: list(message.properties.items())),
        of("flag", pa.int32(), lambda message: message.flag),
        of("sys_flag", pa.int32(), lambda message: message.sys_flag),
        of("born_timestamp", TIMESTAMP, lambda message: time_of(message.born_timestamp)),
        of("store_timestamp", TIMESTAMP, lambda message: time_of(message.store_timestamp)),
        of("born_host", pa.string(), lambda message: message.born_host),
        of("store_host", pa.string(), lambda message: message.store_host),
        of("reconsume_times", pa.int32(), lambda message: message.reconsume_times),
        of("sharding_key", pa.string(), lambda message: message.properties.get("__SHARDINGKEY")),
        of("commit_log_offset", pa.int64(), lambda message: message.commit_log_offset),
    )


def table(columns: tuple[ParquetColumn, ...], rows: list[tuple[Any, ...]]) -> pa.Table:
    """Return the rows as an Arrow table."""
    schema = pa.schema([(column.name, column.type) for column in columns])
    arrays = [pa.array([row[place] for row in rows], column.type) for place, column in enumerate(columns)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _converted(name: str, value: Value, convert: Convert) -> Callable[[Opened], Any]:
    def get(opened: Opened) -> Any:
        found = value(opened)
        if found is None:
            return None
        try:
            return convert(found)
        except InvalidBodyError:
            raise
        except (ValueError, ArithmeticError) as error:
            raise InvalidBodyError(f"the column {name} cannot be written: {error}") from None

    return get


def _converter(kind: pa.DataType) -> Convert:
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind)
    if pa.types.is_integer(kind):
        return lambda value: _integer(value, kind.bit_width)
    return _CONVERTERS.get(kind, as_text)


def _binary(value: Any) -> bytes:
    return value if isinstance(value, bytes) else as_text(value).encode()


def _number(value: Any) -> Decimal:
    if not isinstance(value, bool):
        try:
            number = Decimal(as_text(value))
        except InvalidOperation:
            pass
        else:
            if number.is_finite():
                return number
    raise ValueError("it is not a number")


def _integer(value: Any, bits: int) -> int:
    number = value if type(value) is int else _number(value)
    most = 1 << (bits - 1)
    if not -most <= number < most:
        raise ValueError(f"it does not fit in {bits} bits")
    if number != int(number):
        raise ValueError("it is not a whole number")
    return int(number)


def _float(value: Any) -> float:
    number = float(_number(value))
    if not math.isfinite(number):
        raise ValueError("it does not fit in 64 bits")
    return number


def _decimal(value: Any, kind: pa.DataType) -> Decimal:
    made = exactly(_number(value), kind.precision, kind.scale)
    if made is None:
        raise ValueError(f"it has more than {kind.precision} digits, or more than {kind.scale} after the point")
    return made


def _boolean(value: Any) -> bool:
    text = as_text(value)
    if text not in ("true", "false"):
        raise ValueError("it is neither true nor false")
    return text == "true"


def _timestamp(value: Any) -> datetime:
    """Convert milliseconds since 1970, or an ISO 8601 time, which is in UTC if it has no zone."""
    if not isinstance(value, str):
        return time_of(_integer(value, 64))
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("it is not a time such as 2026-03-01T10:00:00Z") from None
    return time.astimezone(UTC) if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(as_text(value))
    except ValueError:
        raise ValueError("it is not a date such as 2026-03-01") from None


def _properties(value: Any) -> list[tuple[str, str]]:
    return [(as_text(name), as_text(one)) for name, one in value.items()]


_CONVERTERS: Final[Mapping[pa.DataType, Convert]] = {
    pa.string(): as_text,
    pa.binary(): _binary,
    pa.float64(): _float,
    pa.bool_(): _boolean,
    TIMESTAMP: _timestamp,
    pa.date32(): _date,
    _MAP: _properties,
}
