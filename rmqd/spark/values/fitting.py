"""Converts Python values to a type, or rejects them with a reason. No I/O.

Values that JSON lacks are given as text: dates and times in ISO 8601, bytes in base64. JSON numbers with a decimal
point are given as decimals, which keep all digits.

Infers the schema of JSON bodies from a sample. No I/O.

The schema fits all bodies of the sample: if one number of a field has a decimal point, the field is a double, and a
field with several types is a string, which contains the JSON of other values. Texts stay strings, because a text that
looks like a date today may be another text tomorrow.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, NoReturn

from rmqd.spark.values.column_kinds import MOST_DIGITS, ColumnKind

Fit = Callable[[Any], Any]

_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_LARGEST_FLOAT: Final = 3.4028235677973366e38
_WIDEST: Final = Context(prec=MOST_DIGITS)  # Python's default context has 28 digits


def fit_of(kind: ColumnKind) -> Fit:
    """Return a function that converts values. It raises ValueError for invalid values; null is always valid."""
    fit = _FITS[kind.name](kind)
    return lambda value: None if value is None else fit(value)


def _struct(kind: ColumnKind) -> Fit:
    fits = [(name, fit_of(inner)) for name, inner in kind.fields]

    def fit(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _no(value, "object")
        made = {}
        for name, inner in fits:
            try:
                made[name] = inner(value.get(name))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return made

    return fit


def _array(kind: ColumnKind) -> Fit:
    inner = fit_of(kind.fields[0][1])

    def fit(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _no(value, "array")
        return [_at(number, inner, element) for number, element in enumerate(value)]

    return fit


def _map(kind: ColumnKind) -> Fit:
    inner = fit_of(kind.fields[0][1])

    def fit(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _no(value, "object")
        return [(str(key), _at(key, inner, element)) for key, element in value.items()]

    return fit


def _at(place: object, fit: Fit, value: Any) -> Any:
    try:
        return fit(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def _whole(kind: ColumnKind) -> Fit:
    most = 1 << (_BITS[kind.name] - 1)

    def fit(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _no(value, kind.name)
        if not -most <= value < most:
            raise ValueError(f"{value} is too large for {kind.name}")
        return value

    return fit


def _real(kind: ColumnKind) -> Fit:
    def fit(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise _no(value, kind.name)
        number = float(value)
        is_finite = math.isfinite(number)
        if (kind.name == "float" and is_finite and abs(number) >= _LARGEST_FLOAT) or (
            isinstance(value, Decimal) and not is_finite
        ):
            raise ValueError(f"{value} is too large for {kind.name}")
        return number

    return fit


def _decimal(kind: ColumnKind) -> Fit:
    step = Decimal(1).scaleb(-kind.scale)

    def fit(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
            raise _no(value, kind.sql)
        try:
            number = value if isinstance(value, Decimal) else Decimal(str(value))
            made = number.quantize(step, context=_WIDEST)
        except InvalidOperation:
            raise _no(value, kind.sql) from None
        if made != number or len(made.as_tuple().digits) > kind.precision:
            raise ValueError(f"{value} has more digits than {kind.sql}")
        return made

    return fit


def _boolean(kind: ColumnKind) -> Fit:
    def fit(value: Any) -> bool:
        if not isinstance(value, bool):
            raise _no(value, kind.name)
        return value

    return fit


def _string(kind: ColumnKind) -> Fit:
    def fit(value: Any) -> str:
        if isinstance(value, str):
            return value
        return _json(value) if isinstance(value, dict | list | bool | int | float) else str(value)

    return fit


def _binary(kind: ColumnKind) -> Fit:
    def fit(value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            raise _no(value, "base64 text")
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            raise _no(value, "base64 text") from None

    return fit


def _date(kind: ColumnKind) -> Fit:
    def fit(value: Any) -> date:
        if isinstance(value, date) and not isinstance(value, datetime):
            return value
        if not isinstance(value, str):
            raise _no(value, "date; expected a form such as 2026-03-01")
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise _no(value, "date; expected a form such as 2026-03-01") from None

    return fit


def _time(kind: ColumnKind) -> Fit:
    is_local = kind.name == "timestamp_ntz"

    def fit(value: Any) -> datetime:
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise _no(value, "time; expected a form such as 2026-03-01T10:00:00Z") from None
        if not isinstance(value, datetime):
            raise _no(value, "time; expected a form such as 2026-03-01T10:00:00Z")
        if is_local:
            return value.replace(tzinfo=None)
        if value.tzinfo is None:
            return value.replace(tzinfo=UTC)
        if not MINYEAR < value.year < MAXYEAR:  # Arrow stores UTC, where the year may be out of range
            try:
                value.astimezone(UTC)
            except OverflowError:
                raise ValueError(f"{value} is not a date of the years 1 to 9999 in UTC") from None
        return value

    return fit


_FITS: Final[dict[str, Callable[[ColumnKind], Fit]]] = {
    "struct": _struct,
    "array": _array,
    "map": _map,
    **dict.fromkeys(_BITS, _whole),
    "float": _real,
    "double": _real,
    "decimal": _decimal,
    "boolean": _boolean,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _time,
    "timestamp_ntz": _time,
}


def _json(value: Any) -> str:
    """Return the value as JSON. Decimals keep all their digits."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_json(str(name))}: {_json(inner)}' for name, inner in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def _no(value: Any, kind: str) -> ValueError:
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return ValueError(f"{text if len(text) <= 40 else text[:37] + '...'} is not a valid {kind}")


MOST_FIELDS: Final = 2_000
_LONG: Final = 1 << 63
_MOST_LEVELS: Final = 100  # bodies that are deeper are ignored; types are traversed recursively
_UNKNOWN: Final = ColumnKind("")
_STRING: Final = ColumnKind("string")


class TooManyFieldsError(Exception):
    """Bodies have more fields than a table can have columns, usually because field names are data, like map keys."""


def infer_kind(bodies: Iterable[bytes]) -> tuple[ColumnKind | None, int]:
    """Return the struct of the bodies, and how many bodies it is based on.

    Bodies that are not JSON objects, or too deep, do not count. The struct is None if no body counts. Raises
    TooManyFieldsError.
    """
    found, told, fields = _UNKNOWN, 0, 0
    for body in bodies:
        try:
            value = json.loads(body, parse_constant=_no_number)
            if not isinstance(value, dict) or not value:
                continue
            kind = _kind_of(value)
            if _depth(kind) > _MOST_LEVELS:
                continue
            merged = _merged(found, kind)
        except (ValueError, RecursionError):
            continue
        told += 1
        if merged != found:
            found, fields = merged, _fields(merged)
        if fields > MOST_FIELDS:
            raise TooManyFieldsError(f"bodies have more than {MOST_FIELDS:,} fields")
    return (_settled(found), told) if found.fields else (None, told)


def ddl_of(kind: ColumnKind) -> str:
    """Return a struct in the form of the option valueSchema: `id bigint, lines array<struct<sku:string>>`."""
    one_by_one = ((ColumnKind("struct", (field,)).sql, field[1].sql) for field in kind.fields)
    return ", ".join(f"{sql[len('struct<') : -len(f':{inner}>')]} {inner}" for sql, inner in one_by_one)


def _kind_of(value: Any) -> ColumnKind:
    if value is None:
        return _UNKNOWN
    if isinstance(value, bool):
        return ColumnKind("boolean")
    if isinstance(value, int):
        return ColumnKind("bigint") if -_LONG <= value < _LONG else _STRING
    if isinstance(value, float):
        return ColumnKind("double")
    if isinstance(value, list):
        element = _UNKNOWN
        for one in value:
            element = _merged(element, _kind_of(one))
        return ColumnKind("array", (("element", element),))
    if isinstance(value, dict):
        return ColumnKind("struct", tuple((name, _kind_of(inner)) for name, inner in value.items()))
    return _STRING


def _merged(one: ColumnKind, other: ColumnKind) -> ColumnKind:
    """Return a kind that fits the values of both."""
    if _UNKNOWN in (one, other):
        return other if one == _UNKNOWN else one
    if one.name == other.name == "array":
        return ColumnKind("array", (("element", _merged(one.fields[0][1], other.fields[0][1])),))
    if one.name == other.name == "struct":
        fields = dict(one.fields)
        for name, kind in other.fields:
            fields[name] = _merged(fields.get(name, _UNKNOWN), kind)
        if len(fields) > MOST_FIELDS:  # check early: one body may contain an array of many different structs
            raise TooManyFieldsError(f"bodies have more than {MOST_FIELDS:,} fields")
        return ColumnKind("struct", tuple(fields.items()))
    if one == other:
        return one
    return ColumnKind("double") if {one.name, other.name} == {"bigint", "double"} else _STRING


def _fields(kind: ColumnKind) -> int:
    """Return the number of fields at all levels."""
    return sum(1 + _fields(inner) for _, inner in kind.fields)


def _depth(kind: ColumnKind) -> int:
    return 1 + max((_depth(inner) for _, inner in kind.fields), default=0)


def _settled(kind: ColumnKind) -> ColumnKind:
    """Replace unknown kinds, and remove fields whose names differ only in case, which SQL does not distinguish."""
    if kind == _UNKNOWN:
        return _STRING
    if kind.name == "array":
        return ColumnKind("array", (("element", _settled(kind.fields[0][1])),))
    if kind.name != "struct":
        return kind
    fields: dict[str, tuple[str, ColumnKind]] = {}
    for name, inner in kind.fields:
        if name:
            fields.setdefault(name.lower(), (name, _settled(inner)))
    return ColumnKind("struct", tuple(fields.values())) if fields else ColumnKind("map", (("value", _STRING),))


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not valid JSON")
