"""Text of strangers (brokers, producers, handlers' errors) as it may be shown to a person.

A terminal obeys escape sequences, and a reader believes what looks like a line of its own: both are for us to write.
"""

from __future__ import annotations

import re
from typing import Any, Final

# Controls, what turns the direction of writing, other ends of lines, what is not seen, halves of surrogate pairs.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_UNSAFE_BUT_LINES: Final = re.compile(f"(?![\n\t]){_UNSAFE.pattern}")


def printable(text: str) -> str:
    """On one line: what a terminal would obey, or not show, is escaped as Python writes it."""
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escaped, text)


def printable_lines(text: str, indent: str = "    ") -> str:
    """As `printable`, but ends of lines stay, and every line after the first is indented: none passes for another's."""
    return _UNSAFE_BUT_LINES.sub(_escaped, text).replace("\n", f"\n{indent}")


def printable_values(value: Any) -> Any:
    """A document of JSON with every text in it printable."""
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
