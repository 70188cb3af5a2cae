"""Decodes responses whose headers differ from an earlier header only in numbers, without parsing the JSON again.

A broker writes the headers of all pull responses alike: only the opaque and three offsets change. The first such header
becomes a pattern with groups for these numbers and every other byte fixed. A header that matches the pattern has the
same fields except for the numbers. All other headers go to `decode_command`, the only judge of valid commands.
"""

from __future__ import annotations

import re
from typing import Final

from rmqd.codes import ResponseCode, SerializeType
from rmqd.wire.command import RemotingCommand, decode_command

_OFFSETS: Final = ("nextBeginOffset", "minOffset", "maxOffset")
_OPAQUE: Final = "opaque"
_OPAQUE_NUMBER: Final = r"(0|[1-9]\d{0,9})"  # the form of numbers in JSON
_OFFSET_NUMBER: Final = r"(\d{1,19})"  # inside a string
_BYTES: Final = "latin-1"  # one character for each byte: decoding the header once is cheaper than decoding each number
_OPAQUE_MAX: Final = 2**31 - 1
_MOST_PATTERNS: Final = 4  # for one broker; more patterns would cost more than they save


class AlikeHeaders:
    """Decodes the pull responses of one broker."""

    __slots__ = ("_patterns",)

    def __init__(self) -> None:
        self._patterns: list[_Pattern] = []

    def decode(self, payload: bytes) -> RemotingCommand:
        """Decode a frame without its length field, as `decode_command` does. Raises ProtocolError."""
        for pattern in self._patterns:
            if (reply := pattern.decode(payload)) is not None:
                return reply
        command = decode_command(payload)
        if (
            command.code == ResponseCode.SUCCESS
            and len(self._patterns) < _MOST_PATTERNS
            and (found := _pattern_of(command)) is not None
        ):
            self._patterns.append(found)
        return command


class _Pattern:
    """Headers like that of `sample`. The groups of `expression` have the order of `names`."""

    __slots__ = ("_expression", "_fields", "_names", "_opaque_at", "_same")

    def __init__(self, sample: RemotingCommand, expression: re.Pattern[str], names: list[str]) -> None:
        self._same = sample.code, sample.flag, sample.remark, sample.language, sample.version
        self._fields = sample.ext_fields.copy()
        self._expression = expression
        self._opaque_at = names.index(_OPAQUE)
        self._names = [name for name in names if name != _OPAQUE]

    def decode(self, payload: bytes) -> RemotingCommand | None:
        body_start = 4 + int.from_bytes(payload[:4])  # the first byte is the serialize type: 0 for JSON
        found = self._expression.fullmatch(payload[4:body_start].decode(_BYTES))
        if found is None or body_start > len(payload):
            return None
        numbers = [*found.groups()]
        opaque = int(numbers.pop(self._opaque_at))
        if opaque > _OPAQUE_MAX:
            return None
        fields = self._fields.copy()
        fields.update(zip(self._names, numbers, strict=True))
        code, flag, remark, language, version = self._same
        return RemotingCommand(code, opaque, flag, fields, payload, body_start, remark, language, version)


def _pattern_of(command: RemotingCommand) -> _Pattern | None:
    """Return the pattern of a header; None if one of its numbers could be read in two ways."""
    header = command.payload[4 : command.body_start]
    # Without escapes, quotes start and end strings alternately. So a quoted name that occurs once is a member's name.
    if command.payload[0] != SerializeType.JSON or b"\\" in header:
        return None
    members = {name: (f'"{name}":"', command.ext_fields.get(name, "")) for name in _OFFSETS}
    members[_OPAQUE] = (f'"{_OPAQUE}":', str(command.opaque))
    places: list[tuple[int, int, str]] = []
    for name, (before, number) in members.items():
        start = header.find((before + number).encode()) + len(before)
        # other scripts have digits as well, with several bytes each
        is_number = number.isascii() and number.isdecimal()
        if start < len(before) or not is_number or header.count(f'"{name}"'.encode()) != 1:
            return None
        places.append((start, start + len(number), name))
    places.sort()
    written, end = [], 0
    for start, until, name in places:
        same = re.escape(header[end:start].decode(_BYTES))
        written += [same, _OPAQUE_NUMBER if name == _OPAQUE else _OFFSET_NUMBER]
        end = until
    expression = "".join([*written, re.escape(header[end:].decode(_BYTES))])
    return _Pattern(command, re.compile(expression, re.ASCII), [name for *_, name in places])
