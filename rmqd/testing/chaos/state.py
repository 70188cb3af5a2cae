"""States as values to compare, the differences between two, and parts that vary in every run."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from typing import Any, Final

from rmqd.plain_text import text_of
from rmqd.testing.chaos.memory import attributes_of

Path = tuple[object, ...]
VARIES: Final = "(differs each time)"
_ANY: Final = "*"  # stands for any part of a list in a path: what varies in one part varies in all
_KEYS: Final = (
    "(keys)"  # follows the path of a dict whose keys always vary: its values are compared like the parts of a list
)
_PLAIN: Final = (bool, int, float, str, bytes, type(None))
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_DEEPEST: Final = 30
Looked = Callable[[object], bool]
"""Returns whether the attributes of an object are part of the state."""


def plain(value: object, looked_into: Looked, depth: int = 0) -> Any:
    """Convert a state to dicts, lists, tuples and plain values.

    An inspected object becomes its attributes, a dataclass its fields, and another object its text.
    """
    if type(value) in _PLAIN or depth > _DEEPEST:
        return value if type(value) in _PLAIN else type(value).__name__
    if isinstance(value, enum.Enum):
        return str(value)

    def inner(one: object) -> Any:
        return plain(one, looked_into, depth + 1)

    if isinstance(value, Mapping):
        return {_key(inner(key)): inner(one) for key, one in value.items()}
    if isinstance(value, Set):
        return sorted((inner(one) for one in value), key=repr)
    if isinstance(value, str | bytes | bytearray | int | float):
        return bytes(value) if isinstance(value, bytearray) else text_of(value)
    if isinstance(value, tuple):
        return tuple(inner(one) for one in value)
    if isinstance(value, Collection | Iterator):
        return [inner(one) for one in value]  # for example rows of a cursor, a deque, a list
    if dataclasses.is_dataclass(value) or looked_into(value):
        return {name: inner(one) for name, one in attributes_of(value).items()}
    text = text_of(value, repr)
    return f"<{type(value).__name__}>" if _ADDRESS.search(text) else text


def varying(one: Any, other: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths at which two states that should be equal differ, for example in a time or a random id."""
    if one == other:
        return
    if isinstance(one, dict) and isinstance(other, dict) and len(one) == len(other):
        if one.keys() == other.keys():
            for key in one:
                yield from varying(one[key], other[key], (*path, key))
        else:
            yield (*path, _KEYS)
            for pair in zip(sorted(one.values(), key=repr), sorted(other.values(), key=repr), strict=True):
                yield from varying(*pair, (*path, _ANY))
    elif isinstance(one, list | tuple) and type(one) is type(other) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from varying(*pair, (*path, _ANY if isinstance(one, list) else index))
    else:
        yield path


def settled(state: Any, leave_out: Collection[Path], path: Path = ()) -> Any:
    """Return a state for comparison: without varying parts and the order of lists, which queues do not keep."""
    if path in leave_out:
        return VARIES
    if isinstance(state, dict):
        if (*path, _KEYS) in leave_out:
            state = list(state.values())
        else:
            return {key: settled(one, leave_out, (*path, key)) for key, one in state.items()}
    if isinstance(state, tuple):
        return tuple(settled(one, leave_out, (*path, index)) for index, one in enumerate(state))
    if isinstance(state, list):
        return sorted((settled(one, leave_out, (*path, _ANY)) for one in state), key=repr)
    return state


def differences(expected: Any, found: Any, name: str = "") -> Iterator[str]:
    """Yield the differences between two settled states, a line for each part."""
    if expected == found:
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*expected, *found]):
            inner = f"{name}.{key}" if name and str(key).isidentifier() else f"{name}[{key!r}]" if name else str(key)
            if key not in found:
                yield f"{inner}: missing, expected {shown(expected[key])}"
            elif key not in expected:
                yield f"{inner}: {shown(found[key])}, expected nothing"
            else:
                yield from differences(expected[key], found[key], inner)
        return
    if isinstance(expected, list) and isinstance(found, list):
        too_few, too_many = _surplus(expected, found), _surplus(found, expected)
        place = f"{name}: " if name else ""
        yield from (f"{place}{text} is missing" for text in too_few)
        yield from (f"{place}{text} is unexpected" for text in too_many)
        return
    yield f"{name or 'the state'}: {shown(found)}, expected {shown(expected)}"


def shown(state: Any, most: int = 120) -> str:
    """Return a state as text, cut to some length."""
    text = repr(state)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _surplus(some: list[Any], others: list[Any]) -> Iterator[str]:
    return (Counter(map(shown, some)) - Counter(map(shown, others))).elements()


def _key(key: Any) -> Any:
    return key if isinstance(key, _PLAIN) else repr(key)
