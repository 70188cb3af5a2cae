"""Changes YAML line by line: known keys, values and indentation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Final

from tests.nightly.fuzzing.target import Change

_LINE: Final = re.compile(rb"(\s*(?:- )?)([^:#]*?)(: ?)(.*)", re.DOTALL)


def changed_text(text: bytes, keys: Sequence[str], values: Sequence[str], chance: Random, change: Change) -> bytes:
    """Change, add, remove, move or indent up to four lines or ranges of lines."""
    lines = text.split(b"\n")
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        _change_line(lines, keys, values, chance, change)
    return b"\n".join(lines)


def _change_line(
    lines: list[bytes], keys: Sequence[str], values: Sequence[str], chance: Random, change: Change
) -> None:
    at = chance.randrange(len(lines)) if lines else 0
    line = lines[at] if lines else b""
    match = _LINE.fullmatch(line)
    indent, key, colon, value = match.groups() if match else (b"", line, b": ", b"")
    kind = chance.randrange(14)
    if kind < 2:
        lines[at : at + 1] = [indent + key + colon + chance.choice(values).encode()]
    elif kind < 4:
        lines[at : at + 1] = [indent + key + colon + change(value or b"1", 200)]
    elif kind < 7:
        other = chance.choice(values).encode()
        new = indent.replace(b"- ", b"  ") + chance.choice(keys).encode() + b": " + other
        lines.insert(at + chance.randrange(2), new)
    elif kind == 7:
        lines[at : at + 1] = [indent + chance.choice(keys).encode() + colon + value]
    elif kind == 8 and len(lines) > 1:
        del lines[at]
    elif kind == 9:
        lines.insert(at, chance.choice([line, b"  " + line, b"- " + line.strip()]))
    elif kind == 10 and lines:
        other_at = chance.randrange(len(lines))
        lines[at], lines[other_at] = lines[other_at], lines[at]
    elif kind == 11:
        lines[at : at + 1] = [b"  " + line] if chance.random() < 0.5 else [line.removeprefix(b"  ")]
    elif kind == 12:
        lines[at : at + 1] = [change(line or b" ", 200)]
    else:
        first, last = sorted((at, chance.randrange(len(lines) + 1)))
        lines[first:last] = [] if chance.random() < 0.3 else lines[first:last] * 2
