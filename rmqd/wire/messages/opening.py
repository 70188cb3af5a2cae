"""Opens the bodies of a decoded response: compressed bodies, and batches that a broker stores as one record.

A response of a few hundred kilobytes may become gigabytes. So bodies are opened in queue order while there is room,
each up to a size limit. The response then ends before the first unopened body, and the caller asks for the rest again
when there is room. If there is much to do, another thread may do it: an `Opening` touches only its block, which nothing
else uses before `finish`.
"""

from __future__ import annotations

from typing import Final

from rmqd.errors import BodyTooLargeError, ProtocolError
from rmqd.wire.messages.compression import MAX_BODY_BYTES, decompress
from rmqd.wire.messages.inner_batch import member_records
from rmqd.wire.messages.message import CorruptMessage, Message, MessageBlock
from rmqd.wire.messages.properties import INNER_NUM
from rmqd.wire.messages.sys_flag import COMPRESSED, NEED_UNWRAP

# Opening up to this size takes a few milliseconds, and so does not need a thread.
AT_ONCE_STORED_BYTES: Final = 64 * 1024
AT_ONCE_OPENED_BYTES: Final = 1024 * 1024
NO_LIMIT: Final = 2**63


class Opening:
    """The bodies of one block. Call `at_once`, then `rest` if `at_once` returns False, then `finish`.

    `room_bytes` is the block's memory limit, which at most one body exceeds. Members of batches below the offset `low`
    are omitted. Without `unwraps`, a batch is corrupt. With `ends_at_corrupt`, messages after the first corrupt one are
    omitted as well.
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
        self.cancelled = False  # the result is not needed any more
        self._block = block
        self._max = max_body_size
        self._room = room_bytes
        self._low = low
        self._unwraps = unwraps
        self._ends_at_corrupt = ends_at_corrupt
        self._next = 0  # index in block.messages
        self._opened: list[Message] = []
        self._corrupt: list[CorruptMessage] = []
        self._records: list[bytes] = [block.data]  # and the records made for members of batches
        self._size = len(block.data)
        self._end = len(block.data)

    def at_once(self) -> bool:
        """Open as much as takes little time. Returns whether that was everything."""
        stored = sum(message.stored_size for message in self._block.messages if message.is_closed)
        return stored <= AT_ONCE_STORED_BYTES and self._open(min(self._max, AT_ONCE_OPENED_BYTES), AT_ONCE_OPENED_BYTES)

    def rest(self) -> None:
        """Open the remaining messages while there is room."""
        self._open(self._max, NO_LIMIT)

    def finish(self) -> list[Message]:
        """Replace the block's messages by the opened ones. Returns the unopened messages.

        The block must not refer to them: because they refer to the block, only the garbage collector would free it.
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
        """Continue; False if a body exceeds `most_bytes`, or all bodies together exceed `all_bytes`."""
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
            raise ProtocolError("it is a whole batch (queue.type=BatchCQ), and POP cannot acknowledge its members")
        if sys_flag & COMPRESSED:
            body = decompress(body, sys_flag, most_bytes)
        if sys_flag & NEED_UNWRAP:
            self._unwrap(message, body)
        else:
            message.open_as(body)
            self._size += len(body)
            self._opened.append(message)

    def _unwrap(self, batch: Message, body: bytes) -> None:
        """Replace a batch by its members."""
        head, topic = batch.record_parts()
        found = member_records(head, topic, batch.queue_offset, body)
        announced = batch.properties.get(INNER_NUM, "")
        if announced.isdecimal() and announced != str(len(found)):  # int() rejects thousands of digits
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
