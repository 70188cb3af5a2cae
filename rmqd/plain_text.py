"""Texts of foreign objects, such as exceptions of handlers.

These functions never raise, regardless of the object's own methods. Their results can be encoded as UTF-8.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final

# the descriptor of `type` itself, because a metaclass may define any __name__
_name_of: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


class RaisedElsewhere:
    """Mixed into exceptions that stand for an exception of another process. Has the traceback that Python printed
    there.
    """

    told_traceback = ""


def encodable(text: str) -> str:
    """Return the text with lone surrogates escaped: JSON may contain them, but UTF-8 cannot encode them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def class_name(value: object) -> str:
    return _name_of(type(value))


def text_of(value: object, make: Callable[[Any], str] = str) -> str:
    """Return the object's `str` or `repr` (`make`); the name of its class if that raises."""
    try:
        text = str.__str__(make(value))  # a plain string, also if the result's class inherits from str
    except BaseException:  # noqa: BLE001  foreign code, whose failure must not matter
        return f"<{class_name(value)} without a text>"
    return encodable(text)


def describe(error: BaseException) -> str:
    """Return the class of an exception and its text, if it has one."""
    text = text_of(error)
    return f"{class_name(error)}: {text}" if text else class_name(error)


def traceback_tail(error: BaseException, lines: int, characters: int) -> tuple[str, ...]:
    """Return the last lines of the traceback, each cut to this many characters. Formats only the innermost frames."""
    try:
        text = _told(error) or "".join(traceback.format_exception(error, limit=-lines, chain=False))
    except BaseException:  # noqa: BLE001  foreign code: the exception's attributes are read
        text = describe(error)
    return tuple(encodable(line[:characters]) for line in text.rstrip().splitlines()[-lines:])


def traceback_of(error: BaseException) -> str:
    """Return the traceback as Python prints it; only the exception if printing fails."""
    try:
        text = _told(error) or "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001  foreign code: the exception's attributes are read
        return describe(error)
    return encodable(text)


def _told(error: BaseException) -> str:
    return error.told_traceback if isinstance(error, RaisedElsewhere) else ""
