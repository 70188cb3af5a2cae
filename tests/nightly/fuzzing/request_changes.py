"""Changes requests line by line: parts of the first line, headers, the body and its length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Final

from tests.nightly.fuzzing.target import Change

_LENGTH: Final = re.compile(rb"(?i)(\r\ncontent-length: *)[0-9]+(?=\r\n)")


def changed_requests(data: bytes, words: Sequence[bytes], most_bytes: int, chance: Random, change: Change) -> bytes:
    """Change, add, remove or move some lines, or change the body."""
    head, blank, body = data.partition(b"\r\n\r\n")
    if (kind := chance.random()) < 0.12 and blank:
        body = change(body or b"a", max(8, most_bytes - len(head) - 4))
    elif kind < 0.18:
        return (data + data)[:most_bytes]
    elif kind < 0.22:
        at = chance.randrange(len(data) + 1)
        return (data[:at] + b"\n\0\n" + data[at:])[:most_bytes]
    else:
        lines = head.split(b"\r\n")
        for _ in range(chance.choice([1, 1, 2, 3])):
            _change_line(lines, words, chance, change)
        head = b"\r\n".join(lines)
    if chance.random() < 0.7:
        head = _LENGTH.sub(lambda match: match[1] + str(len(body)).encode(), head + b"\r\n").removesuffix(b"\r\n")
    return (head + (blank or b"\r\n\r\n") + body)[:most_bytes]


def _change_line(lines: list[bytes], words: Sequence[bytes], chance: Random, change: Change) -> None:
    if not lines:
        lines.append(b"GET / HTTP/1.1")
    at = chance.randrange(len(lines))
    line = lines[at]
    kind = chance.randrange(10)
    if at == 0 and kind < 6:
        parts = line.split(b" ")
        part = chance.randrange(len(parts))
        word = chance.choice(words).strip()
        parts[part] = word if kind < 2 else parts[part] + word if kind < 4 else change(parts[part] or b"/", 200)
        lines[0] = b" ".join(parts)
    elif kind < 3:
        lines.insert(at + 1, chance.choice(words).strip(b"\r\n"))
    elif kind < 5:
        name, colon, value = line.partition(b":")
        value = change(value or b" ", 200) if chance.random() < 0.6 else chance.choice(words).strip()
        lines[at] = name + colon + value
    elif kind == 5 and len(lines) > 1:
        del lines[at]
    elif kind == 6:
        lines.insert(at, line)
    elif kind == 7:
        lines[at] = change(line or b" ", 200)
    elif kind == 8:
        other = chance.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        cut = chance.randrange(len(line) + 1)
        lines[at] = line[:cut] + chance.choice(words) + line[cut:]
