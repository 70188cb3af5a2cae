"""Converts decoded values to a column type, or rejects them with a reason; infers the type of JSON bodies. No I/O.

JSON has no dates, times and bytes. So dates and times are read from text in ISO 8601, and bytes from base64. JSON
numbers with a decimal point arrive as `Decimal`, which keeps all digits.

An inferred schema fits all bodies of the sample. If one number of a field has a decimal point, the field is a double. A
field with several types is a string, which contains the JSON of values that are not text. Texts are always inferred as
strings, because a later body may have text that is not a date.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from functools import partial, reduce
from typing import Any, Final

from rmqd.handler_api.destinations.exact_json import exact_json, refuse_constant
from rmqd.spark.values.column_kinds import MAX_DECIMAL_DIGITS, ColumnKind, array_kind, map_kind

Converter = Callable[[Any], Any]

_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_LARGEST_FLOAT: Final = 3.4028235677973366e38
_NUMBERS: Final = (int, float, Decimal)
_WIDEST: Final = Context(prec=MAX_DECIMAL_DIGITS)  # Python's default context rounds to 28 digits


def converter_to(kind: ColumnKind) -> Converter:
    """Return a function that converts a value, which must not be None, to this type, or raises ValueError."""
    fits = [(name, converter_to(inner)) for name, inner in kind.fields]
    match kind.name:
        case "struct":
            return partial(_struct, fits)
        case "array":
            return partial(_array, fits[0][1])
        case "map":
            return partial(_map, fits[0][1])
        case "decimal":
            return partial(_decimal, kind, Decimal(1).scaleb(-kind.scale))
        case "tinyint" | "smallint" | "int" | "bigint":
            return partial(_whole, kind.name, 1 << (_BITS[kind.name] - 1))
        case "float" | "double":
            return partial(_real, kind.name, _LARGEST_FLOAT if kind.name == "float" else math.inf)
    return _FITS[kind.name]


def _struct(fits: list[tuple[str, Converter]], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _not(value, "object")
    made, name = {}, ""
    try:
        for name, fit in fits:
            inner = value.get(name)
            made[name] = None if inner is None else fit(inner)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return made


def _array(fit: Converter, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _not(value, "array")
    return [_at(number, fit, element) for number, element in enumerate(value)]


def _map(fit: Converter, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise _not(value, "object")
    return [(str(key), _at(key, fit, element)) for key, element in value.items()]


def _at(place: object, fit: Converter, value: Any) -> Any:
    try:
        return None if value is None else fit(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _whole(name: str, most: int, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _not(value, name)
    if not -most <= value < most:
        raise ValueError(f"{value} is too large for {name}")
    return value


def _real(name: str, limit: float, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        raise _not(value, name)
    number = float(value)
    if abs(number) >= limit and (math.isfinite(number) or isinstance(value, Decimal)):  # Avro's infinity is valid
        raise ValueError(f"{value} is too large for {name}")
    return number


def _decimal(kind: ColumnKind, step: Decimal, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise _not(value, kind.sql)
    try:
        number = value if isinstance(value, Decimal) else Decimal(str(value))
        made = number.quantize(step, context=_WIDEST)
    except InvalidOperation:
        raise _not(value, kind.sql) from None
    if made != number or len(made.as_tuple().digits) > kind.precision:
        raise ValueError(f"{value} has more digits than {kind.sql}")
    return made


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _not(value, "boolean")
    return value


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    return exact_json(value) if isinstance(value, dict | list | bool | int | float) else str(value)


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value if isinstance(value, str) else "?", validate=True)
    except ValueError:
        raise _not(value, "base64 text") from None


def _date(value: Any) -> date:
    try:
        return value if type(value) is date else date.fromisoformat(value)
    except (ValueError, TypeError):
        raise _not(value, "date; expected a form such as 2026-03-01") from None


def _moment(value: Any) -> datetime:
    try:
        return value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (ValueError, TypeError):
        raise _not(value, "time; expected a form such as 2026-03-01T10:00:00Z") from None


def _time(value: Any) -> datetime:
    moment = _moment(value)
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    if not MINYEAR < moment.year < MAXYEAR:  # Arrow stores UTC, in which the year may be 0 or 10000
        try:
            moment.astimezone(UTC)
        except OverflowError:
            raise ValueError(f"{moment} is not a date of the years 1 to 9999 in UTC") from None
    return moment


_FITS: Final[dict[str, Converter]] = {
    "boolean": _boolean,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _time,
    "timestamp_ntz": lambda value: _moment(value).replace(tzinfo=None),
}


def _not(value: Any, kind: str) -> ValueError:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return ValueError(f"{text if len(text) <= 40 else text[:37] + '...'} is not a valid {kind}")


MAX_INFERRED_FIELDS: Final = 2_000
_LONG: Final = 1 << 63
_MAX_LEVELS: Final = 100  # levels of nesting; deeper bodies are ignored, because types are traversed recursively
_UNKNOWN: Final = ColumnKind("")
_STRING: Final = ColumnKind("string")


class TooManyFieldsError(Exception):
    """The inferred schema has more than MAX_INFERRED_FIELDS, usually because field names are data, such as ids."""


def infer_json_kind(bodies: Iterable[bytes]) -> tuple[ColumnKind | None, int]:
    """Return a struct type that fits the bodies, and the number of bodies that were used.

    Bodies that are not JSON objects, empty, or too deeply nested are ignored. The type is None if all are ignored.
    Raises TooManyFieldsError.
    """
    found, told = _UNKNOWN, 0
    for body in bodies:
        try:
            value = json.loads(body, parse_constant=refuse_constant)
            if not isinstance(value, dict) or not value:
                continue
            kind = _kind_of(value)
            if _depth(kind) > _MAX_LEVELS:
                continue
            merged = _merged(found, kind)
        except (ValueError, RecursionError):
            continue
        told += 1
        if merged != found:
            found = merged
            _check_fields(_fields(found))
    return (_settled(found), told) if found.fields else (None, told)


def _kind_of(value: Any) -> ColumnKind:
    match value:
        case None:
            return _UNKNOWN
        case bool():
            return ColumnKind("boolean")
        case int() if -_LONG <= value < _LONG:
            return ColumnKind("bigint")
        case float():
            return ColumnKind("double")
        case list():
            return array_kind(reduce(_merged, map(_kind_of, value), _UNKNOWN))
        case dict():
            return ColumnKind("struct", tuple((name, _kind_of(inner)) for name, inner in value.items()))
    return _STRING


def _merged(one: ColumnKind, other: ColumnKind) -> ColumnKind:
    """Return a type that fits all values of both types."""
    if _UNKNOWN in (one, other):
        return other if one == _UNKNOWN else one
    if one.name == other.name == "array":
        return array_kind(_merged(one.fields[0][1], other.fields[0][1]))
    if one.name == other.name == "struct":
        fields = dict(one.fields)
        for name, kind in other.fields:
            fields[name] = _merged(fields.get(name, _UNKNOWN), kind)
        _check_fields(len(fields))  # check at each merge: one body may contain an array of many different structs
        return ColumnKind("struct", tuple(fields.items()))
    if one == other:
        return one
    return ColumnKind("double") if {one.name, other.name} == {"bigint", "double"} else _STRING


def _check_fields(count: int) -> None:
    if count > MAX_INFERRED_FIELDS:
        raise TooManyFieldsError(f"bodies have more than {MAX_INFERRED_FIELDS:,} fields")


def _fields(kind: ColumnKind) -> int:
    return sum(1 + _fields(inner) for _, inner in kind.fields)


def _depth(kind: ColumnKind) -> int:
    return 1 + max((_depth(inner) for _, inner in kind.fields), default=0)


def _settled(kind: ColumnKind) -> ColumnKind:
    """Replace unknown types by string. If field names differ only in case, keep the first, because SQL ignores case."""
    if kind == _UNKNOWN:
        return _STRING
    if kind.name == "array":
        return array_kind(_settled(kind.fields[0][1]))
    if kind.name != "struct":
        return kind
    fields: dict[str, tuple[str, ColumnKind]] = {}
    for name, inner in kind.fields:
        if name:
            fields.setdefault(name.lower(), (name, _settled(inner)))
    return ColumnKind("struct", tuple(fields.values())) if fields else map_kind(_STRING)
