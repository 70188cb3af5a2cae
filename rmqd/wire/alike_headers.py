"""Decodes replies whose headers differ from an earlier one in their numbers alone, without reading the JSON anew.

A broker writes the header of each reply to a pull in one way: only the opaque and three offsets change. Of the first
such header a pattern is made, which has these numbers as groups and every other byte as it is. What matches it says,
but for them, what that header says. Anything else goes to `decode_command`, which alone judges what is a command.
"""

from __future__ import annotations

import re
from typing import Final

from rmqd.codes import ResponseCode, SerializeType
from rmqd.wire.command import RemotingCommand, decode_command

_OFFSETS: Final = ("nextBeginOffset", "minOffset", "maxOffset")
_OPAQUE: Final = "opaque"
_OPAQUE_NUMBER: Final = r"(0|[1-9]\d{0,9})"  # as JSON has numbers
_OFFSET_NUMBER: Final = r"(\d{1,19})"  # within a string
_BYTES: Final = "latin-1"  # a character for each byte: one text of the header is cheaper than one of each number
_OPAQUE_MAX: Final = 2**31 - 1
_MOST_PATTERNS: Final = 4  # of one broker: more of them would cost more than they save


class AlikeHeaders:
    """Decodes the replies of one broker to pulls."""

    __slots__ = ("_patterns",)

    def __init__(self) -> None:
        self._patterns: list[_Pattern] = []

    def decode(self, payload: bytes) -> RemotingCommand:
        """What `decode_command` makes of a frame without its length field. Raises ProtocolError as it does."""
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
    """The headers that are like that of `sample`; the groups of `expression` are in the order of `names`."""

    __slots__ = ("_expression", "_fields", "_names", "_opaque_at", "_same")

    def __init__(self, sample: RemotingCommand, expression: re.Pattern[str], names: list[str]) -> None:
        self._same = sample.code, sample.flag, sample.remark, sample.language, sample.version
        self._fields = sample.ext_fields.copy()
        self._expression = expression
        self._opaque_at = names.index(_OPAQUE)
        self._names = [name for name in names if name != _OPAQUE]

    def decode(self, payload: bytes) -> RemotingCommand | None:
        body_start = 4 + int.from_bytes(payload[:4])  # the first byte is the serialize type, 0 where it is JSON
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
    """The pattern of a header; None where one of its numbers could be read in two ways."""
    header = command.payload[4 : command.body_start]
    # without escapes, quotes begin and end strings in turns: a name in quotes that is there once is that member's
    if command.payload[0] != SerializeType.JSON or b"\\" in header:
        return None
    members = {name: (f'"{name}":"', command.ext_fields.get(name, "")) for name in _OFFSETS}
    members[_OPAQUE] = (f'"{_OPAQUE}":', str(command.opaque))
    places: list[tuple[int, int, str]] = []
    for name, (before, number) in members.items():
        start = header.find((before + number).encode()) + len(before)
        is_number = number.isascii() and number.isdecimal()  # other scripts have digits too, of several bytes
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
