"""The base classes of headers, which convert a dataclass to ext fields and back.

The wire name of a field is the field's name in camel case, unless its annotation has a `WireName`. A field has the type
str, int or bool, and may be optional. A field that is None is omitted from the ext fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, dataclass_transform, get_args, get_type_hints

from rmqd.codes import RequestCode
from rmqd.errors import ProtocolError
from rmqd.wire.fields import LazyDataclass, parse_integer, wire_name


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    wire: str
    kind: type
    required: bool


_FIELDS: Final[dict[type, tuple[_Field, ...]]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Header(LazyDataclass, kw_only=True):
    """Base of the headers of requests and responses."""

    def ext_fields(self) -> dict[str, str]:
        result = {}
        for field in _fields(type(self)):
            value = getattr(self, field.name)
            if value is None:
                continue
            if field.kind is bool:
                result[field.wire] = "true" if value else "false"
            else:
                result[field.wire] = value if field.kind is str else str(int(value))
        return result

    @classmethod
    def from_ext_fields(cls, ext_fields: Mapping[str, str]) -> Self:
        """Read a header; unknown ext fields are ignored. Raises ProtocolError if a field is missing or invalid."""
        values: dict[str, Any] = {}
        for field in _fields(cls):
            text = ext_fields.get(field.wire)
            if text is None:
                if field.required:
                    raise ProtocolError(f"{cls.__name__}: the ext field {field.wire} is missing")
            elif field.kind is str:
                values[field.name] = text
            elif field.kind is bool:
                values[field.name] = text.lower() == "true"
            elif text or field.required:
                values[field.name] = parse_integer(text, field.wire)
        return cls(**values)


class RequestHeader(Header):
    """Base of the headers of requests. `bname` is the name of the broker that should process the request."""

    code: ClassVar[RequestCode]

    bname: str | None = None

    def __init_subclass__(cls, code: RequestCode | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = code


def _fields(cls: type[Header]) -> tuple[_Field, ...]:
    if (known := _FIELDS.get(cls)) is not None:
        return known
    cls.generate_methods()
    hints, annotations = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    result = []
    for field in dataclasses.fields(cls):
        kind = next((kind for kind in get_args(hints[field.name]) if kind is not type(None)), hints[field.name])
        wire = wire_name(field.name, annotations[field.name])
        result.append(_Field(field.name, wire, kind, field.default is dataclasses.MISSING))
    fields = _FIELDS[cls] = tuple(result)
    return fields
