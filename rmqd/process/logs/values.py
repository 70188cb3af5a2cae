"""Prepares the values of a log line: limits their length, and escapes control characters.

A broker's remark or a handler's error may be megabytes long, and may contain text from the sender of a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from itertools import islice
from typing import Any, Final

from rmqd.plain_text import text_of
from rmqd.process.logs.printable import printable, printable_lines

EventDict = MutableMapping[str, Any]

MOST_CHARACTERS: Final = 8192
MOST_MEMBERS: Final = 100
MOST_LEVELS: Final = 4
# A traceback is cut in the middle: its end names the error.
_TAIL_CHARACTERS: Final = 2048
_OF_A_PROGRAM: Final = frozenset({"timestamp", "level", "logger"})


def shorten_values(_logger: object, _method: str, event: EventDict) -> EventDict:
    """A structlog processor that cuts long texts and large collections, and marks the cuts. Keys do not change."""
    for key, value in event.items():
        if key == "exception" and isinstance(value, str):
            event[key] = _without_middle(value)
        elif key not in _OF_A_PROGRAM:
            event[key] = _shortened(value, MOST_LEVELS)
    return event


def escape_values(_logger: object, _method: str, event: EventDict) -> EventDict:
    """A structlog processor for the console that escapes control characters and indents the further lines of a text."""
    for key, value in list(event.items()):
        if key in ("event", "exception", "stack"):
            event[key] = printable_lines(str(value))
        elif isinstance(value, str):
            event[key] = printable(value)
        if not (key.isascii() and key.isprintable()):
            event[printable(key)] = event.pop(key)
    return event


def _shortened(value: Any, levels: int) -> Any:
    match value:
        case str():
            return value if len(value) <= MOST_CHARACTERS else _cut(value)
        case None | bool() | float():
            return value
        case int():
            return value if value.bit_length() <= 1024 else "an integer of more than 1024 bits"
        case bytes() | bytearray() | memoryview():
            return _cut(str(bytes(value[: MOST_CHARACTERS + 1])), len(value) * 4)
        case Mapping() if levels:
            return {_key(key): _shortened(member, levels - 1) for key, member in islice(value.items(), MOST_MEMBERS)}
        case list() | tuple() | set() | frozenset() if levels:
            return _shortened_list(value, len(value), levels)
        case _:
            return _cut(text_of(value))


def _shortened_list(values: Iterable[Any], count: int, levels: int) -> list[Any]:
    shown = [_shortened(value, levels - 1) for value in islice(values, MOST_MEMBERS)]
    return shown if count <= MOST_MEMBERS else [*shown, f"... and {count - MOST_MEMBERS} more"]


def _key(key: object) -> str:
    return _cut(key if isinstance(key, str) else text_of(key))


def _cut(text: str, length: int | None = None) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}... and {(length or len(text)) - MOST_CHARACTERS} more characters"


def _without_middle(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    head, tail = text[: MOST_CHARACTERS - _TAIL_CHARACTERS], text[-_TAIL_CHARACTERS:]
    return f"{head}\n... {len(text) - MOST_CHARACTERS} characters ...\n{tail}"
