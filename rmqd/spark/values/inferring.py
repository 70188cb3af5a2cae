"""Infers the schema of JSON bodies from a sample. No I/O.

The schema fits all bodies of the sample: if one number of a field has a decimal point, the field is a double, and a
field with several types is a string, which contains the JSON of other values. Texts stay strings, because a text that
looks like a date today may be another text tomorrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from rmqd.spark.values.kinds import Kind

MOST_FIELDS: Final = 2_000
_LONG: Final = 1 << 63
_MOST_LEVELS: Final = 100  # bodies that are deeper are ignored; types are traversed recursively
_UNKNOWN: Final = Kind("")
_STRING: Final = Kind("string")


class TooManyFieldsError(Exception):
    """Bodies have more fields than a table can have columns, usually because field names are data, like map keys."""


def infer_kind(bodies: Iterable[bytes]) -> tuple[Kind | None, int]:
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


def ddl_of(kind: Kind) -> str:
    """Return a struct in the form of the option valueSchema: `id bigint, lines array<struct<sku:string>>`."""
    one_by_one = ((Kind("struct", (field,)).sql, field[1].sql) for field in kind.fields)
    return ", ".join(f"{sql[len('struct<') : -len(f':{inner}>')]} {inner}" for sql, inner in one_by_one)


def _kind_of(value: Any) -> Kind:
    if value is None:
        return _UNKNOWN
    if isinstance(value, bool):
        return Kind("boolean")
    if isinstance(value, int):
        return Kind("bigint") if -_LONG <= value < _LONG else _STRING
    if isinstance(value, float):
        return Kind("double")
    if isinstance(value, list):
        element = _UNKNOWN
        for one in value:
            element = _merged(element, _kind_of(one))
        return Kind("array", (("element", element),))
    if isinstance(value, dict):
        return Kind("struct", tuple((name, _kind_of(inner)) for name, inner in value.items()))
    return _STRING


def _merged(one: Kind, other: Kind) -> Kind:
    """Return a kind that fits the values of both."""
    if _UNKNOWN in (one, other):
        return other if one == _UNKNOWN else one
    if one.name == other.name == "array":
        return Kind("array", (("element", _merged(one.fields[0][1], other.fields[0][1])),))
    if one.name == other.name == "struct":
        fields = dict(one.fields)
        for name, kind in other.fields:
            fields[name] = _merged(fields.get(name, _UNKNOWN), kind)
        if len(fields) > MOST_FIELDS:  # check early: one body may contain an array of many different structs
            raise TooManyFieldsError(f"bodies have more than {MOST_FIELDS:,} fields")
        return Kind("struct", tuple(fields.items()))
    if one == other:
        return one
    return Kind("double") if {one.name, other.name} == {"bigint", "double"} else _STRING


def _fields(kind: Kind) -> int:
    """Return the number of fields at all levels."""
    return sum(1 + _fields(inner) for _, inner in kind.fields)


def _depth(kind: Kind) -> int:
    return 1 + max((_depth(inner) for _, inner in kind.fields), default=0)


def _settled(kind: Kind) -> Kind:
    """Replace unknown kinds, and remove fields whose names differ only in case, which SQL does not distinguish."""
    if kind == _UNKNOWN:
        return _STRING
    if kind.name == "array":
        return Kind("array", (("element", _settled(kind.fields[0][1])),))
    if kind.name != "struct":
        return kind
    fields: dict[str, tuple[str, Kind]] = {}
    for name, inner in kind.fields:
        if name:
            fields.setdefault(name.lower(), (name, _settled(inner)))
    return Kind("struct", tuple(fields.values())) if fields else Kind("map", (("value", _STRING),))


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not valid JSON")
