"""The fields of headers and bodies: their wire names, functions that check their values, and size limits.

The functions return the field's value, or raise a ProtocolError that quotes the wrong value. `what` names the field in
this error. RocketMQ does not limit the size of routes and resets. The limits in this module are far above real
clusters, and fit into memory. A larger route is from a damaged or hostile name server, or has too many queues by
mistake. Every queue costs each consumer some kilobytes and a task.
"""

from __future__ import annotations

import math
import re
from dataclasses import Field, dataclass
from threading import RLock
from typing import Any, ClassVar, Final, Self

from rmqd.errors import ProtocolError
from rmqd.wire import loose_json

_INTEGER: Final = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


_LOCK: Final = RLock()
_COMPLETE: Final[set[type]] = set()


class LazyDataclass:
    """Base of headers and bodies: a frozen dataclass whose methods are generated when the class is first used.

    There are about 140 such classes, and a process uses a few of them. Generating the methods of all classes would take
    0.1 s of CPU time at the start of every command.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _options: ClassVar[dict[str, bool]] = {}  # arguments of the `dataclass` decorator

    def __init_subclass__(cls, *, kw_only: bool = False, order: bool = False) -> None:
        cls._options = {"kw_only": kw_only or cls._options.get("kw_only", False), "order": order}

    def __new__(cls, *args: Any, **values: Any) -> Self:
        if cls not in _COMPLETE:
            cls.generate_methods()
        return object.__new__(cls)

    @classmethod
    def generate_methods(cls) -> None:
        """Generate the dataclass methods of this class and its bases, unless they were generated before."""
        with _LOCK:
            for each in reversed(cls.__mro__):
                if each not in _COMPLETE and issubclass(each, LazyDataclass):
                    dataclass(frozen=True, **each._options)(each)
                    _COMPLETE.add(each)


@dataclass(frozen=True, slots=True)
class WireName:
    """An annotation that gives a field's wire name, if it is not the field's name in camel case."""

    name: str


def wire_name(name: str, annotation: Any) -> str:
    """Return a field's wire name: the name in its annotation `WireName`, or `name` in camel case."""
    for note in getattr(annotation, "__metadata__", ()):
        if isinstance(note, WireName):
            return note.name
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def parse_integer(text: str, what: str) -> int:
    """Parse a signed integer of 64 bits, like Java's `Long.parseLong`. Raises ProtocolError."""
    if _INTEGER.fullmatch(text):
        value = int(text)
        if _LONG_MIN <= value <= _LONG_MAX:
            return value
    raise ProtocolError(f"{what} must be an integer, not {text!r:.80}")


def body_object(body: bytes | str) -> dict[Any, Any]:
    """Parse a body that must be a JSON object. Raises ProtocolError."""
    return as_object(loose_json.loads(body), "the body")


def as_object(value: object, what: str) -> dict[Any, Any]:
    """Return `value` if it is a JSON object, else raise ProtocolError."""
    if isinstance(value, dict):
        return value
    raise _wrong(what, "an object", value)


def as_key(key: object, what: str) -> dict[str, Any]:
    """Return a map key that must be an object. It may be a string that contains the object as JSON."""
    if isinstance(key, loose_json.ObjectKey):
        return dict(key)
    if isinstance(key, str):
        return as_object(loose_json.loads(key), what)
    raise _wrong(what, "an object as key", key)


def as_integer(value: object, what: str) -> int:
    """Return `value` if it is an integer of 64 bits, or a string with one; else raise ProtocolError."""
    if isinstance(value, str) and len(value) <= 20:
        try:
            value = int(value)
        except ValueError:
            raise _wrong(what, "an integer", value) from None
    if isinstance(value, int) and not isinstance(value, bool) and _LONG_MIN <= value <= _LONG_MAX:
        return value
    raise _wrong(what, "an integer of 64 bits", value)


def as_text(value: object, what: str) -> str:
    """Return `value` if it is a string, else raise ProtocolError."""
    if isinstance(value, str):
        return value
    raise _wrong(what, "a string", value)


def as_number(value: object, what: str) -> float:
    """Return `value` if it is a finite number up to 1e300, else raise ProtocolError."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300 and math.isfinite(value):
        return float(value)
    raise _wrong(what, "a number", value)


def as_boolean(value: object, what: str) -> bool:
    """Return `value` if it is a boolean, else raise ProtocolError."""
    if isinstance(value, bool):
        return value
    raise _wrong(what, "true or false", value)


def as_list(value: object, what: str) -> list[Any]:
    """Return `value` if it is a list, or an empty list for null; else raise ProtocolError."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise _wrong(what, "a list", value)


def required_text(data: dict[Any, Any], name: str) -> str:
    """Return a string field of a JSON object. Raises ProtocolError if the field is missing or null."""
    return as_text(data.get(name), name)


def optional_text(data: dict[Any, Any], name: str) -> str | None:
    """Return a string field of a JSON object; None if the field is missing or null."""
    value = data.get(name)
    return None if value is None else as_text(value, name)


def required_integer(data: dict[Any, Any], name: str) -> int:
    """Return an integer field of a JSON object. Raises ProtocolError if the field is missing or null."""
    return as_integer(data.get(name), name)


def optional_list(data: dict[Any, Any], name: str) -> list[Any]:
    """Return a list field of a JSON object; an empty list if the field is missing or null."""
    return as_list(data.get(name), name)


def optional_object(data: dict[Any, Any], name: str) -> dict[Any, Any]:
    """Return an object field of a JSON object; an empty object if the field is missing or null."""
    value = data.get(name)
    return {} if value is None else as_object(value, name)


def _wrong(what: str, wanted: str, found: object) -> ProtocolError:
    return ProtocolError(f"{what} must be {wanted}, not {found!r:.80}")


MAX_QUEUES: Final = 65_536  # queues of one topic on all its brokers
MAX_BROKERS: Final = 4_096  # brokers that serve one topic
MAX_ROUTE_BYTES: Final = 4 * 1024 * 1024  # size of a route's body
MAX_ROUTE_OBJECTS: Final = 16 * MAX_BROKERS  # JSON objects and lists in a route; each takes more memory than its bytes
MAX_RESET_BYTES: Final = 8 * 1024 * 1024  # size of a reset's body, which has an entry for every queue
MAX_RESET_OBJECTS: Final = 2 * MAX_QUEUES


def check_body(body: bytes, what: str, most_bytes: int, most_objects: int) -> None:
    """Raise ProtocolError if a body has more bytes, or more JSON objects and lists, than allowed. Does not parse it."""
    if len(body) > most_bytes:
        raise ProtocolError(f"{what} of {len(body)} bytes is too large; expected at most {most_bytes}")
    objects = body.count(b"{") + body.count(b"[")
    if objects > most_objects:
        raise ProtocolError(f"{what} of {objects} objects is too large; expected at most {most_objects}")
