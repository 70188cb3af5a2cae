"""Texts of foreign objects (of brokers, producers, handlers' errors) that are safe to show.

These functions never raise, regardless of the object's own methods, and their results can be encoded as UTF-8. A
terminal obeys escape sequences, and text after a line break looks like another log line: foreign text must not do
either.
"""

from __future__ import annotations

import re
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


# Control characters, bidirectional controls, other line breaks, invisible characters, lone surrogates. Compiled at the
# first use and cached by re: every command imports this module, and help needs neither pattern.
_UNSAFE: Final = (
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_UNSAFE_BUT_LINES: Final = f"(?![\n\t]){_UNSAFE}"


def printable(text: str) -> str:
    """Return the text on one line, with control and invisible characters escaped as in Python source."""
    return text if text.isascii() and text.isprintable() else re.sub(_UNSAFE, _escaped, text)


def printable_lines(text: str, indent: str = "    ") -> str:
    """Like `printable`, but keep line breaks, and indent all lines after the first, so that none looks like a log
    line.
    """
    return re.sub(_UNSAFE_BUT_LINES, _escaped, text).replace("\n", f"\n{indent}")


def printable_values(value: Any) -> Any:
    """Return a JSON document with all its texts made printable."""
    match value:
        case str():
            return printable(value)
        case list():
            return [printable_values(member) for member in value]
        case dict():
            return {key: printable_values(member) for key, member in value.items()}
        case _:
            return value


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
