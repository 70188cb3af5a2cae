"""Opens the bodies of a decoded reply: those that are compressed, and batches that a broker stores as one record.

A reply of a few hundred kilobytes may become gigabytes. So bodies are opened in queue order and for as long as there is
room, each to a size limit; the reply counts as ending before the first one that is not opened, and its rest is to be
asked for again when there is room. Where there is much to do, another thread may do it: an `Opening` touches nothing
but its block, which nobody else uses before `finish`.
"""

from __future__ import annotations

from typing import Final

from rmqd.errors import BodyTooLargeError, ProtocolError
from rmqd.wire.messages.compression import MAX_BODY_BYTES, decompress
from rmqd.wire.messages.inner_batch import member_records
from rmqd.wire.messages.message import CorruptMessage, Message, MessageBlock
from rmqd.wire.messages.properties import INNER_NUM
from rmqd.wire.messages.sys_flag import COMPRESSED, NEED_UNWRAP

# What is opened at once, and not in a thread: it keeps the caller for a few milliseconds
AT_ONCE_STORED_BYTES: Final = 64 * 1024
AT_ONCE_OPENED_BYTES: Final = 1024 * 1024
NO_LIMIT: Final = 2**63


class Opening:
    """The bodies of one block. Call `at_once`; if it says that more is to be done, `rest`; then `finish`.

    `room_bytes` is what the block may take, of which one body at most is exceeded; members of batches that lie below
    the offset `low` are left out. Where it `unwraps` none, a batch is corrupt. Where it `ends_at_corrupt`, what comes
    behind the first message that cannot be opened is left out too.
    """

    def __init__(
        self,
        block: MessageBlock,
        max_body_size: int = MAX_BODY_BYTES,
        room_bytes: int = NO_LIMIT,
        low: int = 0,
        *,
        unwraps: bool = True,
        ends_at_corrupt: bool = False,
    ) -> None:
        self.cancelled = False  # nobody wants the result any more
        self._block = block
        self._max = max_body_size
        self._room = room_bytes
        self._low = low
        self._unwraps = unwraps
        self._ends_at_corrupt = ends_at_corrupt
        self._next = 0  # of block.messages
        self._opened: list[Message] = []
        self._corrupt: list[CorruptMessage] = []
        self._records: list[bytes] = [block.data]  # and what stands for the members of batches
        self._size = len(block.data)
        self._end = len(block.data)

    def at_once(self) -> bool:
        """Open what takes no time to speak of; whether that was all."""
        stored = sum(message.stored_size for message in self._block.messages if message.is_closed)
        return stored <= AT_ONCE_STORED_BYTES and self._open(min(self._max, AT_ONCE_OPENED_BYTES), AT_ONCE_OPENED_BYTES)

    def rest(self) -> None:
        """Open what is left, as far as there is room."""
        self._open(self._max, NO_LIMIT)

    def finish(self) -> list[Message]:
        """Have the block show what was opened; the messages that were left out.

        The block must not refer to them: with their own references to it, only the garbage collector would free it.
        """
        block, left = self._block, self._block.messages[self._next :]
        if left:
            block.cut_at = left[0].queue_offset
            block.corrupt = [one for one in block.corrupt if one.message.is_before(left[0])]
        block.messages = self._opened
        if self._corrupt:
            block.corrupt = sorted([*block.corrupt, *self._corrupt], key=lambda one: one.message.queue_offset)
        if len(self._records) > 1:
            block.data = b"".join(self._records)
        block.size_bytes = self._size
        block.unfinished = len(self._opened)
        block.is_closed = False
        return left

    def _open(self, most_bytes: int, all_bytes: int) -> bool:
        """Go on; False where a body becomes more than `most_bytes`, or all of them together more than `all_bytes`."""
        messages, before = self._block.messages, self._size
        while self._next < len(messages) and not self.cancelled:
            message = messages[self._next]
            if self._corrupt and self._ends_at_corrupt:
                return True
            if not message.is_closed:
                self._opened.append(message)
            elif self._opened and self._size > self._room:
                return True
            elif self._size - before > all_bytes:
                return False
            else:
                try:
                    self._open_one(message, most_bytes)
                except BodyTooLargeError as error:
                    if most_bytes < self._max:
                        return False
                    self._corrupt.append(CorruptMessage(message, str(error)))
                except ProtocolError as error:
                    self._corrupt.append(CorruptMessage(message, str(error)))
            self._next += 1
        return True

    def _open_one(self, message: Message, most_bytes: int) -> None:
        sys_flag, body = message.sys_flag, message.stored_body
        if sys_flag & NEED_UNWRAP and not self._unwraps:
            raise ProtocolError("it is a whole batch (queue.type=BatchCQ), whose members POP cannot acknowledge")
        if sys_flag & COMPRESSED:
            body = decompress(body, sys_flag, most_bytes)
        if sys_flag & NEED_UNWRAP:
            self._unwrap(message, body)
        else:
            message.open_as(body)
            self._size += len(body)
            self._opened.append(message)

    def _unwrap(self, batch: Message, body: bytes) -> None:
        """Put the members of a batch in its place."""
        head, topic = batch.record_parts()
        found = member_records(head, topic, batch.queue_offset, body)
        announced = batch.properties.get(INNER_NUM, "")
        if announced.isdecimal() and announced != str(len(found)):  # int() refuses thousands of digits
            raise ProtocolError(f"a batch announces {announced[:20]} messages and holds {len(found)}")
        for offset, (record, body_size) in enumerate(found, batch.queue_offset):
            if offset >= self._low:
                start, body_start = self._end, self._end + len(head)
                self._records.append(record)
                self._end += len(record)
                self._size += len(record)
                self._opened.append(
                    Message().placed(
                        self._block, start, body_start, body_start + body_size, offset, batch.store_timestamp
                    )
                )
