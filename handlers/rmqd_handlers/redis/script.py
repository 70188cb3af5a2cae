"""The script that adds a batch. Scripts are atomic: other clients never see half of a batch.

A script that fails keeps its earlier changes. So an entry is added before its mark is set, and no mark exists without
its entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SCRIPT: Final = """
local target, add, most, remember_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local at, added, entries = 4, 0, (#KEYS - 1) / 2
for number = 2, entries + 1 do
    local count = tonumber(ARGV[at])
    if remember_ms == '0' or redis.call('EXISTS', KEYS[number], KEYS[number + entries]) == 0 then
        local parts = {}
        for place = 1, count do parts[place] = ARGV[at + place] end
        if add == 'XADD' and most ~= '0' then
            redis.call('XADD', target, 'MAXLEN', '~', most, '*', unpack(parts))
        elseif add == 'XADD' then
            redis.call('XADD', target, '*', unpack(parts))
        else
            redis.call(add, target, unpack(parts))
        end
        if remember_ms ~= '0' then redis.call('SET', KEYS[number], 1, 'PX', remember_ms) end
        added = added + 1
    end
    at = at + count + 1
end
if most ~= '0' and add == 'RPUSH' then redis.call('LTRIM', target, -most, -1) end
if most ~= '0' and add == 'LPUSH' then redis.call('LTRIM', target, 0, most - 1) end
return added
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message as Redis arguments."""

    mark: str
    """The key that remembers it: the identity of its topic, and its value."""
    former_mark: str
    """The key of rmqd 0.1.0: only its value."""
    parts: tuple[bytes | str, ...]
    """Names and values of a stream's entry, or the one element of a list."""


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of entries."""

    key: str
    add: str
    """XADD, RPUSH or LPUSH."""
    max_length: int
    """0 means no limit."""
    remember_ms: int
    """0 means that messages are not remembered."""

    def call(self, entries: Sequence[Entry]) -> list[bytes | str | int]:
        """Return the arguments of EVAL."""
        # the braces make a cluster keep the marks on the key's node
        marks = [*(entry.mark for entry in entries), *(entry.former_mark for entry in entries)]
        keys = [self.key, *(f"rmqd:{{{self.key}}}:{mark}" for mark in marks)]
        arguments: list[bytes | str | int] = [self.add, self.max_length, self.remember_ms]
        for entry in entries:
            arguments += [len(entry.parts), *entry.parts]
        return [SCRIPT, len(keys), *keys, *arguments]
