"""The columns of Parquet files, and the conversion of messages' values to the columns' types."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from rmqd import Message
from rmqd_handlers.message_values import (
    InvalidBodyError,
    ParsedMessage,
    Value,
    as_bytes,
    as_text,
    in_utc,
    number_in,
    time_of,
    with_scale,
)
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

ARCHIVE_COLUMNS: Final = (
    "broker queue_id queue_offset msg_id offset_msg_id keys tags body properties flag sys_flag born_timestamp "
    "store_timestamp born_host store_host reconsume_times sharding_key commit_log_offset"
).split()
_OF_ARCHIVE: Final[Mapping[str, Callable[[Message], Any]]] = {
    "broker": attrgetter("broker_name"),
    "body": lambda message: bytes(message.body),
    "properties": lambda message: list(message.properties.items()),
    "born_timestamp": lambda message: time_of(message.born_timestamp),
    "store_timestamp": lambda message: time_of(message.store_timestamp),
    "sharding_key": lambda message: message.properties.get("__SHARDINGKEY"),
}

Convert = Callable[[Any], Any]


def type_of(name: str) -> pa.DataType:
    digits = decimal_of(name)
    return _TYPES[name] if digits is None else pa.decimal128(*digits)


@dataclass(frozen=True, slots=True)
class ParquetColumn:
    """A column: its Arrow type, and the function that reads its value from a message."""

    name: str
    type: pa.DataType
    value: Callable[[ParsedMessage], Any]
    """Raises InvalidBodyError if the message has no value that fits the type."""


def columns_of_options(values: Mapping[str, Value], types: Mapping[str, str]) -> tuple[ParquetColumn, ...]:
    """Return the columns of the options. By default a message field has its natural type; any other value is text."""
    columns = []
    for name, value in values.items():
        kind = type_of(types[name]) if name in types else _OF_FIELDS.get(value.text, pa.string())
        columns.append(ParquetColumn(name, kind, _converted(name, value, _converter(kind))))
    return tuple(columns)


def archive_columns() -> tuple[ParquetColumn, ...]:
    """Return columns for all fields of a message, with the names and types of the pipeline `archive`."""

    def of(name: str) -> ParquetColumn:
        get = _OF_ARCHIVE.get(name, attrgetter(name))
        return ParquetColumn(name, types.get(name, pa.string()), lambda opened: get(opened.message))

    types = {"commit_log_offset": pa.int64(), "flag": pa.int32(), "sys_flag": pa.int32(), **_OF_FIELDS}
    return tuple(map(of, ARCHIVE_COLUMNS))


def table(columns: tuple[ParquetColumn, ...], rows: list[tuple[Any, ...]]) -> pa.Table:
    schema = pa.schema([(column.name, column.type) for column in columns])
    arrays = [pa.array([row[place] for row in rows], column.type) for place, column in enumerate(columns)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _converted(name: str, value: Value, convert: Convert) -> Callable[[ParsedMessage], Any]:
    def get(opened: ParsedMessage) -> Any:
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


def _number(value: Any) -> Decimal | int:
    number = number_in(value)
    if number is None:
        raise ValueError("it is not a number")
    return number


def _integer(value: Any, bits: int) -> int:
    number = _number(value)
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
    made = with_scale(Decimal(_number(value)), kind.precision, kind.scale)
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
        return in_utc(datetime.fromisoformat(value))
    except ValueError:
        raise ValueError("it is not a time such as 2026-03-01T10:00:00Z") from None


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(as_text(value))
    except ValueError:
        raise ValueError("it is not a date such as 2026-03-01") from None


_CONVERTERS: Final[Mapping[pa.DataType, Convert]] = {
    pa.string(): as_text,
    pa.binary(): as_bytes,
    pa.float64(): _float,
    pa.bool_(): _boolean,
    TIMESTAMP: _timestamp,
    pa.date32(): _date,
    _MAP: lambda value: [(as_text(name), as_text(one)) for name, one in value.items()],
}
