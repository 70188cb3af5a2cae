"""The schema that bodies in JSON have, found by looking at some. Pure.

It takes what every one of them fits: a number with a point in one makes all of a field's numbers doubles, and a field
that is of several kinds is a string, with the JSON of what is none. Texts stay texts: a date may be one today alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from rmqd.spark.values.kinds import Kind

MOST_FIELDS: Final = 2_000
_LONG: Final = 1 << 63
_MOST_LEVELS: Final = 100  # what is deeper is found bad by no schema at all; types are walked level by level
_UNKNOWN: Final = Kind("")
_STRING: Final = Kind("string")


class TooManyFieldsError(Exception):
    """Bodies have more fields than a table can have columns: mostly their names are data, such as keys of a map."""


def infer_kind(bodies: Iterable[bytes]) -> tuple[Kind | None, int]:
    """The struct that bodies are, and how many of them tell of it; others are no JSON objects, or too deep for a type.

    None where none does. Raises TooManyFieldsError.
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
    """A struct as the option valueSchema has it: `id bigint, lines array<struct<sku:string>>`."""
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
    """The kind that values of both fit."""
    if _UNKNOWN in (one, other):
        return other if one == _UNKNOWN else one
    if one.name == other.name == "array":
        return Kind("array", (("element", _merged(one.fields[0][1], other.fields[0][1])),))
    if one.name == other.name == "struct":
        fields = dict(one.fields)
        for name, kind in other.fields:
            fields[name] = _merged(fields.get(name, _UNKNOWN), kind)
        if len(fields) > MOST_FIELDS:  # before there are as many as an array in one body can have
            raise TooManyFieldsError(f"bodies have more than {MOST_FIELDS:,} fields")
        return Kind("struct", tuple(fields.items()))
    if one == other:
        return one
    return Kind("double") if {one.name, other.name} == {"bigint", "double"} else _STRING


def _fields(kind: Kind) -> int:
    """How many fields a kind has, at all levels."""
    return sum(1 + _fields(inner) for _, inner in kind.fields)


def _depth(kind: Kind) -> int:
    return 1 + max((_depth(inner) for _, inner in kind.fields), default=0)


def _settled(kind: Kind) -> Kind:
    """With a kind for what no body tells, and without fields whose names SQL takes for another one's."""
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
    raise ValueError(f"{text} is no JSON")
