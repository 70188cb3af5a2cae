"""The columns of the option `schema`, and the conversion of a message's values to their types. No I/O.

Canal writes values as text. Debezium writes numbers, text, days, and fractions of seconds since 1970.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from rmqd.handler_api.destinations.exact_json import exact_json
from rmqd_handlers.message_values import EPOCH, MAX_DIGITS, in_utc, of_unscaled, with_scale

Read = Callable[[Any], Any]

WHOLE_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
OTHERS: Final = ("float", "double", "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")
ACCEPTED: Final = f"{', '.join([*WHOLE_BITS, *OTHERS])}, decimal(p,s)"
PER_SECOND: Final = {"milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}
# Debezium's placeholder for a large value that had not changed, and so was not logged: as text, and that text as base64
UNAVAILABLE: Final = ("__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==")
_SYNONYMS: Final = {"integer": "int", "long": "bigint", "real": "float", "numeric": "decimal", "dec": "decimal"}
_COLUMN: Final = re.compile(
    r"\s*(?P<name>\w+|`[^`]+`)\s+(?P<kind>\w+)\s*(?:\(\s*(?P<p>\d+)\s*(?:,\s*(?P<s>\d+)\s*)?\))?\s*(?:,|$)"
)
_LARGEST_EXPONENT: Final = 18  # the exponent of a bigint's first digit; a number such as 3e200000000 is refused
_DIGITS: Final = re.compile(r"[+-]?[0-9]+")
_ZERO_DATE: Final = "0000-00-00"  # MySQL's zero date, which is in no calendar; Debezium converts it to null


class BadValueError(ValueError):
    """A value does not fit its column."""


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """A column: its name and Spark's simple type name."""

    name: str
    kind: str
    precision: int = 0
    scale: int = 0

    @property
    def sql(self) -> str:
        kind = f"decimal({self.precision},{self.scale})" if self.kind == "decimal" else self.kind
        return f"`{self.name}` {kind}"


def parse_columns(text: str) -> tuple[ChangeColumn, ...]:
    """Parse `id bigint, amount decimal(12,2)`. Raises ValueError with the invalid part."""
    found: dict[str, ChangeColumn] = {}
    place = 0
    while text[place:].strip():
        match = _COLUMN.match(text, place)
        if match is None:
            raise ValueError(f"{text[place:].strip()[:40]!r} is not a column; expected a name and one of {ACCEPTED}")
        name = match["name"].strip("`")
        kind = _SYNONYMS.get(match["kind"].lower(), match["kind"].lower())
        if kind != "decimal" and (kind not in (*WHOLE_BITS, *OTHERS) or match["p"]):
            raise ValueError(f"{name}: {match['kind']} is not a valid type; expected {ACCEPTED}")
        precision, scale = int(match["p"] or 10), int(match["s"] or 0)
        if kind == "decimal" and not (0 < precision <= MAX_DIGITS and scale <= precision):
            raise ValueError(f"{name} has too many digits; expected at most {MAX_DIGITS}, including the scale")
        if name.lower() in (known.lower() for known in found):
            raise ValueError(f"duplicate column {name}")
        found[name] = ChangeColumn(name, kind, precision, scale) if kind == "decimal" else ChangeColumn(name, kind)
        place = match.end()
    if not found:
        raise ValueError("no columns; expected columns such as id bigint, amount decimal(12,2)")
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """A message's description of a column, from Debezium's schema."""

    per_second: int = 0
    """The unit of times that are numbers, such as 1,000 per second for milliseconds; 0 if unknown."""
    scale: int | None = None
    """The scale of a decimal that is encoded as bytes; None if it is a number or text."""


NO_COLUMN_SCHEMA: Final = ColumnSchema()


class ValueConverter:
    """Converts values to column types. `binary` decodes text to bytes; `per_second` is the default unit of times."""

    def __init__(self, columns: tuple[ChangeColumn, ...], binary: Read, per_second: int = 0) -> None:
        self._columns = {column.name: column for column in columns}
        self._binary = binary
        self._per_second = per_second

    def row(
        self, values: Mapping[str, Any], schemas: Mapping[str, ColumnSchema], names: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Return a row with the columns `names`, by default all. Missing values are None. Raises BadValueError."""
        return {
            name: self._value(name, values.get(name), schemas.get(name, NO_COLUMN_SCHEMA))
            for name in names or self._columns
        }

    def _value(self, name: str, value: Any, schema: ColumnSchema) -> Any:
        if value is None:
            return None
        if value in UNAVAILABLE:
            raise BadValueError(
                f"{name}: the source did not log this large value, because it had not changed; "
                "set REPLICA IDENTITY FULL for the source table"
            )
        column = self._columns[name]
        try:
            return self._made(column, value, schema)
        except BadValueError as error:
            raise BadValueError(f"{name}: {error}") from None
        except (ValueError, OverflowError, InvalidOperation, TypeError, RecursionError):
            raise BadValueError(f"{name}: {_no(value, column)}") from None

    def _made(self, column: ChangeColumn, value: Any, schema: ColumnSchema) -> Any:
        kind = column.kind
        if kind == "string":
            text = value if isinstance(value, str) else exact_json(value)
            text.encode()  # a lone surrogate is legal in JSON, but not in a column
            return text
        if kind == "boolean":
            return _boolean(value)
        if isinstance(value, bool | list | dict):
            raise BadValueError(_no(value, column))
        if kind in WHOLE_BITS:
            return _whole(value, WHOLE_BITS[kind])
        if kind in ("float", "double"):
            return _double(value)
        if kind == "decimal":
            return _decimal(column, value, schema)
        if kind == "binary":
            return self._binary(value)
        if isinstance(value, str) and value.startswith(_ZERO_DATE):
            return None
        if kind == "date":
            return EPOCH.date() + timedelta(days=value) if isinstance(value, int) else date.fromisoformat(value[:10])
        return _time(value, schema.per_second or self._per_second, is_local=kind == "timestamp_ntz")


def latin_1(text: Any) -> bytes:
    """Decode bytes that Canal has written as text, one Latin-1 character for each byte."""
    return str(text).encode("latin-1")


def base_64(text: Any) -> bytes:
    """Decode bytes that Debezium has written as base64."""
    return base64.b64decode(text, validate=True)


def _no(value: Any, column: ChangeColumn) -> str:
    return f"{described(value)} is not a valid {column.sql.partition(' ')[2]}"


def described(value: Any) -> str:
    """Describe a value by its kind. Reasons are logged, so they must not contain values of a body."""
    if isinstance(value, str):
        return f"a text of {len(value)} character{'' if len(value) == 1 else 's'}"
    names = {bool: "a boolean", int: "a whole number", list: "an array", dict: "an object", type(None): "null"}
    return names.get(type(value), "a number")


def _boolean(value: Any) -> bool:
    found = {"1": True, "true": True, "t": True, "0": False, "false": False, "f": False}.get(str(value).lower())
    if found is None:
        raise ValueError
    return found


def _double(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or (isinstance(value, str) and "_" in value):
        raise ValueError
    return number


def _whole(value: Any, bits: int) -> int:
    if isinstance(value, str):
        if not _DIGITS.fullmatch(value):
            raise ValueError
    elif isinstance(value, Decimal):
        if not value.is_finite() or value.adjusted() > _LARGEST_EXPONENT or value != value.to_integral_value():
            raise ValueError
    elif not isinstance(value, int):
        raise TypeError
    number = int(value)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise ValueError
    return number


def _decimal(column: ChangeColumn, value: Any, schema: ColumnSchema) -> Decimal:
    if schema.scale is not None:
        number = of_unscaled(int.from_bytes(base_64(value), "big", signed=True), schema.scale)
    else:
        try:
            number = Decimal(str(value).replace("_", "no number"))  # refuses Python's digit separator
        except InvalidOperation:
            hint = (
                "" if not isinstance(value, str) else "; if it is base64, set decimal.handling.mode=string in Debezium"
            )
            raise BadValueError(f"{described(value)} is not a number{hint}") from None
    if (made := with_scale(number, column.precision, column.scale)) is not None:
        return made
    raise BadValueError(f"{described(value)} has more digits than decimal({column.precision},{column.scale})")


def _time(value: Any, per_second: int, *, is_local: bool) -> datetime:
    if isinstance(value, int):
        if not per_second:
            raise BadValueError(
                f"{described(value)} is a time in unknown units; set time_unit, or send messages with schema"
            )
        made = EPOCH + timedelta(microseconds=value * 1_000_000 // per_second)
    else:
        made = in_utc(datetime.fromisoformat(value))  # raises OverflowError if the result is outside the calendar
    return made.replace(tzinfo=None) if is_local else made
