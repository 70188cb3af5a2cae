"""Texts of objects that are not rmqd's own, such as exceptions of handlers.

Nothing here raises, whatever the object's own methods do, and all of it can be encoded as UTF-8.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final

# the descriptor of `type` itself: a metaclass may define a __name__ that is anything
_name_of: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


class RaisedElsewhere:
    """Mixed into the classes of exceptions that stand for those of another process: what Python printed there."""

    told_traceback = ""


def encodable(text: str) -> str:
    """The text with lone surrogates escaped: JSON may contain them, and UTF-8 cannot encode them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def class_name(value: object) -> str:
    """The name of the object's class."""
    return _name_of(type(value))


def text_of(value: object, make: Callable[[Any], str] = str) -> str:
    """The object's `str` or `repr` (`make`); the name of its class if that raises."""
    try:
        text = str.__str__(make(value))  # a plain string, also if the result's class inherits from str
    except BaseException:  # noqa: BLE001  it is not our code, and its failure is nobody's result
        return f"<{class_name(value)} without a text>"
    return encodable(text)


def describe(error: BaseException) -> str:
    """The class of an exception and its text, if it has one."""
    text = text_of(error)
    return f"{class_name(error)}: {text}" if text else class_name(error)


def traceback_tail(error: BaseException, lines: int, characters: int) -> tuple[str, ...]:
    """The last lines of the traceback, each cut to so many characters. Only the innermost frames are formatted."""
    try:
        text = _told(error) or "".join(traceback.format_exception(error, limit=-lines, chain=False))
    except BaseException:  # noqa: BLE001  as above: attributes of the exception are asked for
        text = describe(error)
    return tuple(encodable(line[:characters]) for line in text.rstrip().splitlines()[-lines:])


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it; the exception alone if printing it fails."""
    try:
        text = _told(error) or "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001  as above: attributes of the exception are asked for
        return describe(error)
    return encodable(text)


def _told(error: BaseException) -> str:
    return error.told_traceback if isinstance(error, RaisedElsewhere) else ""
