"""The walk over the records of a pull response, which stops at offsets that contradict each other or the header.

No checksum protects a record's queue offset or the header's nextBeginOffset. If one bit is wrong, the next pull or
commit uses another offset, and messages are lost. But the offsets are redundant. So the walk starts at the requested
offset, moves its reached offset past each record, and checks these conditions:

- The record's offset is not below the reached offset, and is below nextBeginOffset.
- If no filter selects messages, the record's offset equals the reached offset, because brokers assign a queue's offsets
  without gaps.
- The record's offset is below the offset of the next record.

nextBeginOffset must follow the last record, or be at most the queue's end. On a contradiction or a corrupt record, the
walk stops with a `Contradiction`. The caller uses the records before the contradiction, and pulls the queue again from
its offset. If the second response agrees with the first, the contradiction is real: compaction and deletions leave
gaps, and a message may be stored corrupt. The walk then continues after the gap or the corrupt record.

A batch that is stored as one record has the offset of its first message and takes one offset for each message. It may
begin before the requested offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.messages.message import CorruptMessage, Message, MessageBlock
from rmqd.wire.messages.properties import INNER_NUM, NEED_UNWRAP

_MAX_COMPARED_BYTES: Final = 1024  # limit of the comparison of two records whose ends are unknown


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The reason why a walk stopped at the offset `at`."""

    at: int
    reason: str


@dataclass(frozen=True, slots=True)
class Gap(Contradiction):
    """The response has no messages from `at` up to, but not including, `to`."""

    to: int


@dataclass(frozen=True, slots=True)
class BadRecord(Contradiction):
    """The record at `at` is corrupt, or its offset is not possible. `offset` is the most likely true offset."""

    offset: int
    message: Message
    frame: bytes  # the record's bytes, to compare them with the second response
    hides_rest: bool

    def has_same_bytes(self, other: BadRecord) -> bool:
        """Return whether the other response has the same bytes at the same offset."""
        if self.hides_rest or other.hides_rest:
            size = min(len(self.frame), len(other.frame), _MAX_COMPARED_BYTES)
            return self.at == other.at and self.frame[:size] == other.frame[:size]
        return self.at == other.at and self.frame == other.frame


def needs_no_walk(block: MessageBlock, asked: int, header: PullMessageResponseHeader) -> bool:
    """Return whether no walk is needed, as for most responses: the offsets go from `asked` to the end without gaps."""
    messages = block.messages
    return (
        block.runs == 1
        and not block.corrupt
        and messages[0].queue_offset == asked
        and messages[-1].queue_offset == header.next_begin_offset - 1
    )


def unopened_body_record(block: MessageBlock, corrupt: CorruptMessage, asked: int) -> BadRecord:
    """Return the contradiction for a message whose body cannot be opened. The walk does not open bodies."""
    message = corrupt.message
    frame = block.data[message._start : message._start + message.store_size]
    at = max(asked, message.queue_offset)
    return BadRecord(at, corrupt.reason, at, message, frame, hides_rest=False)


class ResponseWalk:
    """The walk over one response to a pull at the offset `asked`. `takes_all` is True if no filter selects messages."""

    def __init__(self, block: MessageBlock, asked: int, header: PullMessageResponseHeader, *, takes_all: bool) -> None:
        self.offset = asked
        """The reached offset. The walk has passed all offsets below it."""
        self.messages: list[Message] = []
        """The good messages before `offset`."""
        self._block = block
        self._next, self._max = header.next_begin_offset, header.max_offset
        self._takes_all = takes_all
        bad = [(corrupt.message, corrupt) for corrupt in block.corrupt]
        self._records: list[tuple[Message, CorruptMessage | None]] = sorted(
            [*bad, *((message, None) for message in block.messages)], key=lambda record: record[0]._start
        )
        self._index = self._known_before(asked) if takes_all else 0
        self._ended = False

    def advance(self) -> Contradiction | None:
        """Walk to the next contradiction and return it. Returns None at the end of the response."""
        while not self._ended and self._index < len(self._records):
            if (contradiction := self._contradiction()) is not None:
                return contradiction
            message = self._records[self._index][0]
            self.messages.append(message)
            self.offset = message.queue_offset + _offsets_of(message)
            self._index += 1
        if self._ended or self._next <= self.offset:
            return None
        if self._next > self._max:
            return Contradiction(self.offset, f"the next offset is {self._next}, but the queue ends at {self._max}")
        return self._gap(self._next)

    def skip_confirmed_gap(self, to: int) -> None:
        """Continue after a gap, up to the offset `to`. Call this after the second response has confirmed the gap."""
        self.offset = to

    def skip_bad_record(self, record: BadRecord) -> None:
        """Continue after a bad record. If the record's end is unknown, no later record can be found: the walk ends."""
        self._index += 1
        self.offset = record.offset + (1 if record.hides_rest else _offsets_of(record.message))
        self._ended = record.hides_rest

    def gaps(self) -> dict[int, int]:
        """Return all gaps from the reached offset to the end of the response, as {first offset: end (exclusive)}."""
        found, at = {}, self.offset
        for message, corrupt in self._records[self._index :]:
            if corrupt is None and message.queue_offset > at:
                found[at] = message.queue_offset
            at = max(at, message.queue_offset + 1)
        if self._next > at:
            found[at] = self._next
        return found

    def _contradiction(self) -> Contradiction | None:
        message, corrupt = self._records[self._index]
        at, offset, following = self.offset, message.queue_offset, self._following()
        if corrupt is not None:
            return self._bad(corrupt)
        if offset < at:
            covers = message.sys_flag & NEED_UNWRAP and offset + _offsets_of(message) > at
            return None if covers else self._misplaced(message)
        if offset >= self._next:
            if offset == at:
                return Contradiction(at, f"the next offset is {self._next}, but the response has a message at {offset}")
            return self._misplaced(message)
        if offset > at and following is not None and at <= following <= offset:
            return self._misplaced(message)
        return self._gap(offset) if offset > at and self._takes_all else None

    def _gap(self, to: int) -> Gap:
        return Gap(self.offset, f"the response has no messages at offsets {self.offset} to {to - 1}", to)

    def _misplaced(self, message: Message) -> BadRecord:
        reason = f"its offset {message.queue_offset} does not fit its place in the response"
        return self._bad(CorruptMessage(message, f"{reason}, between {self.offset} and {self._next}"))

    def _bad(self, corrupt: CorruptMessage) -> BadRecord:
        message, at, following = corrupt.message, self.offset, self._following()
        offset = message.queue_offset
        is_possible = at <= offset < self._next and (following is None or offset < following)
        if offset != at and (self._takes_all or not is_possible):
            offset = at
        frame = self._block.data[message._start : self._end()]
        return BadRecord(at, corrupt.reason, offset, message, frame, corrupt.hides_rest)

    def _following(self) -> int | None:
        """Return the offset of the record after the current record; None if there is none, or if it is corrupt."""
        if self._index + 1 == len(self._records):
            return None
        message, corrupt = self._records[self._index + 1]
        return message.queue_offset if corrupt is None else None

    def _end(self) -> int:
        """Return the byte position of the current record's end."""
        if self._index + 1 == len(self._records):
            return len(self._block.data)
        return self._records[self._index + 1][0]._start

    def _known_before(self, asked: int) -> int:
        """Return how many records with offsets below `asked` begin the response; 0 if a gap follows them."""
        first = self._records[0][0].queue_offset if self._records else asked
        count = asked - first
        if not 0 < count <= len(self._records) or self._records[0][0].sys_flag & NEED_UNWRAP:
            return 0
        offsets = [message.queue_offset for message, _ in self._records[:count]]
        return count if offsets == list(range(first, asked)) else 0


def _offsets_of(message: Message) -> int:
    """Return the number of queue offsets that a record takes: 1, or the number of messages in a batch."""
    if not message.sys_flag & NEED_UNWRAP:
        return 1
    count = message.properties.get(INNER_NUM, "")
    return max(1, int(count)) if count.isdecimal() and len(count) <= 5 else 1
