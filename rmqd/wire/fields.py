"""The fields of headers and bodies: their wire names, functions that read their values, and limits.

The functions return the field's value, or raise a ProtocolError that quotes the wrong value. RocketMQ has no limits for
routes and resets; these are far above real clusters, and small enough to be held in memory. A route that exceeds them
is from a damaged or hostile name server, or from a topic that was created by mistake: every queue costs each consumer
some kilobytes and a task.
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

    RocketMQ has about 140 of them, and a process uses a few. Generating the methods of all would take 0.1 s of CPU time
    at the start of every command.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _options: ClassVar[dict[str, bool]] = {}  # for `dataclass`

    def __init_subclass__(cls, *, kw_only: bool = False, order: bool = False) -> None:
        cls._options = {"kw_only": kw_only or cls._options.get("kw_only", False), "order": order}

    def __new__(cls, *args: Any, **values: Any) -> Self:
        if cls not in _COMPLETE:
            cls.complete()
        return object.__new__(cls)

    @classmethod
    def complete(cls) -> None:
        """Generate the methods of the class and its bases, if that has not been done."""
        with _LOCK:
            for each in reversed(cls.__mro__):
                if each not in _COMPLETE and issubclass(each, LazyDataclass):
                    dataclass(frozen=True, **each._options)(each)
                    _COMPLETE.add(each)


@dataclass(frozen=True, slots=True)
class WireName:
    """An annotation of a field whose wire name is not the field's own name in camel case."""

    name: str


def wire_name(name: str, annotation: Any) -> str:
    """Return a field's wire name: the name in `WireName`, or its own name in camel case."""
    for note in getattr(annotation, "__metadata__", ()):
        if isinstance(note, WireName):
            return note.name
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def parse_integer(text: str, what: str) -> int:
    """Parse an integer of 64 bits like Java's `Long.parseLong`. Raises ProtocolError."""
    if _INTEGER.fullmatch(text):
        value = int(text)
        if _LONG_MIN <= value <= _LONG_MAX:
            return value
    raise ProtocolError(f"{what} must be an integer, not {text!r:.80}")


def body_object(body: bytes | str) -> dict[Any, Any]:
    """Parse a body that must be an object."""
    return as_object(loose_json.loads(body), "the body")


def as_object(value: object, what: str) -> dict[Any, Any]:
    """Return `value` if it is an object."""
    if isinstance(value, dict):
        return value
    raise _wrong(what, "an object", value)


def as_key(key: object, what: str) -> dict[str, Any]:
    """Return the object that serves as a map key, even if it was written as a JSON string."""
    if isinstance(key, loose_json.ObjectKey):
        return dict(key)
    if isinstance(key, str):
        return as_object(loose_json.loads(key), what)
    raise _wrong(what, "an object as key", key)


def as_integer(value: object, what: str) -> int:
    """Return `value` if it is an integer of 64 bits, even if it was written as a string."""
    if isinstance(value, str) and len(value) <= 20:
        try:
            value = int(value)
        except ValueError:
            raise _wrong(what, "an integer", value) from None
    if isinstance(value, int) and not isinstance(value, bool) and _LONG_MIN <= value <= _LONG_MAX:
        return value
    raise _wrong(what, "an integer of 64 bits", value)


def as_text(value: object, what: str) -> str:
    """Return `value` if it is a string."""
    if isinstance(value, str):
        return value
    raise _wrong(what, "a string", value)


def as_number(value: object, what: str) -> float:
    """Return `value` if it is a finite number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300 and math.isfinite(value):
        return float(value)
    raise _wrong(what, "a number", value)


def as_boolean(value: object, what: str) -> bool:
    """Return `value` if it is a boolean."""
    if isinstance(value, bool):
        return value
    raise _wrong(what, "true or false", value)


def as_list(value: object, what: str) -> list[Any]:
    """Return `value` if it is a list; null becomes an empty list."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise _wrong(what, "a list", value)


def required_text(data: dict[Any, Any], name: str) -> str:
    """Return a required field that holds a string."""
    return as_text(data.get(name), name)


def optional_text(data: dict[Any, Any], name: str) -> str | None:
    """Return a field that holds a string; None if it is missing."""
    value = data.get(name)
    return None if value is None else as_text(value, name)


def required_integer(data: dict[Any, Any], name: str) -> int:
    """Return a required field that holds an integer."""
    return as_integer(data.get(name), name)


def optional_list(data: dict[Any, Any], name: str) -> list[Any]:
    """Return a field that holds a list; empty if it is missing."""
    return as_list(data.get(name), name)


def optional_object(data: dict[Any, Any], name: str) -> dict[Any, Any]:
    """Return a field that holds an object; empty if it is missing."""
    value = data.get(name)
    return {} if value is None else as_object(value, name)


def _wrong(what: str, wanted: str, found: object) -> ProtocolError:
    return ProtocolError(f"{what} must be {wanted}, not {found!r:.80}")


MAX_QUEUES: Final = 65_536  # limit for one topic, on all its brokers
MAX_BROKERS: Final = 4_096  # serving one topic
MAX_ROUTE_BYTES: Final = 4 * 1024 * 1024  # limit for one body
MAX_ROUTE_OBJECTS: Final = 16 * MAX_BROKERS  # limit for one body; each costs much more memory than its few bytes
MAX_RESET_BYTES: Final = 8 * 1024 * 1024  # limit for one body, which has an entry for every queue
MAX_RESET_OBJECTS: Final = 2 * MAX_QUEUES


def check_body(body: bytes, what: str, most_bytes: int, most_objects: int) -> None:
    """Raise ProtocolError if a body is too large to parse."""
    if len(body) > most_bytes:
        raise ProtocolError(f"{what} of {len(body)} bytes is too large; expected at most {most_bytes}")
    objects = body.count(b"{") + body.count(b"[")
    if objects > most_objects:
        raise ProtocolError(f"{what} of {objects} objects is too large; expected at most {most_objects}")
