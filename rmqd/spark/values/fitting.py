"""Converts Python values to a type, or rejects them with a reason. No I/O.

Values that JSON lacks are given as text: dates and times in ISO 8601, bytes in base64. JSON numbers with a decimal
point are given as decimals, which keep all digits.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final

from rmqd.spark.values.kinds import MOST_DIGITS, Kind

Fit = Callable[[Any], Any]

_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_LARGEST_FLOAT: Final = 3.4028235677973366e38
_WIDEST: Final = Context(prec=MOST_DIGITS)  # Python's default context has 28 digits


def fit_of(kind: Kind) -> Fit:
    """Return a function that converts values. It raises ValueError for invalid values; null is always valid."""
    fit = _FITS[kind.name](kind)
    return lambda value: None if value is None else fit(value)


def _struct(kind: Kind) -> Fit:
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


def _array(kind: Kind) -> Fit:
    inner = fit_of(kind.fields[0][1])

    def fit(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _no(value, "array")
        return [_at(number, inner, element) for number, element in enumerate(value)]

    return fit


def _map(kind: Kind) -> Fit:
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


def _whole(kind: Kind) -> Fit:
    most = 1 << (_BITS[kind.name] - 1)

    def fit(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _no(value, kind.name)
        if not -most <= value < most:
            raise ValueError(f"{value} is too large for {kind.name}")
        return value

    return fit


def _real(kind: Kind) -> Fit:
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


def _decimal(kind: Kind) -> Fit:
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


def _boolean(kind: Kind) -> Fit:
    def fit(value: Any) -> bool:
        if not isinstance(value, bool):
            raise _no(value, kind.name)
        return value

    return fit


def _string(kind: Kind) -> Fit:
    def fit(value: Any) -> str:
        if isinstance(value, str):
            return value
        return _json(value) if isinstance(value, dict | list | bool | int | float) else str(value)

    return fit


def _binary(kind: Kind) -> Fit:
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


def _date(kind: Kind) -> Fit:
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


def _time(kind: Kind) -> Fit:
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


_FITS: Final[dict[str, Callable[[Kind], Fit]]] = {
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
    """Return JSON as in the body, with exact numbers."""
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
