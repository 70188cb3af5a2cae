"""Makes foreign text (from brokers, producers, handlers' errors) safe to show.

A terminal obeys escape sequences, and text after a line break looks like another log line. Foreign text must not be
able to do either.
"""

from __future__ import annotations

import re
from typing import Any, Final

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
