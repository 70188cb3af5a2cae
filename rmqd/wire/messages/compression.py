"""Opening of a response's bodies: decompressing them, and splitting batches that a broker stores as one record.

A response of a few hundred kilobytes may become gigabytes. So bodies (ZLIB, LZ4 frames or ZSTD frames) are opened in
queue order up to a memory limit for the response, each body up to a size limit. Messages beyond the memory limit are
removed from the response, and the caller opens or pulls them later. Opening may run in another thread, because a
`BlockDecompression` changes only its block, which no other code uses before `finish`.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from rmqd.errors import BodyTooLargeError, ProtocolError
from rmqd.wire.messages.message import CorruptMessage, Message, MessageBlock
from rmqd.wire.messages.properties import (
    COMPRESSED,
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    INNER_NUM,
    NEED_UNWRAP,
    CompressionType,
)
from rmqd.wire.messages.record import batch_member_records

MAX_BODY_BYTES: Final = 16 * 1024 * 1024  # the default of `max_body_size`; also the largest frame
_LIKELY_RATIO: Final = 32
_MAX_WINDOW_BYTES: Final = 128 * 1024 * 1024  # as in Java; libzstd rejects larger windows by default
_LZ4_SLICE_BYTES: Final = 4 * 1024  # decompresses to at most 255 times as much
_ZSTD_SLICE_BYTES: Final = 256  # each four bytes decompress to at most 128 KiB


class _Frame(Protocol):
    """The decompressor of one LZ4 or ZSTD frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def decompress(body: bytes, sys_flag: int, max_size_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Decompress the body of a message whose `sys_flag` has COMPRESSED set.

    Without type bits in `sys_flag` the body is ZLIB, as from old producers. Raises ProtocolError for damage or an
    unknown type. Raises BodyTooLargeError if the declared or decompressed size exceeds `max_size_bytes`.
    """
    kind = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    if kind in (0, CompressionType.ZLIB):
        return _inflate(body, max_size_bytes)
    if kind == CompressionType.LZ4:
        return _decompress_lz4(body, max_size_bytes)
    if kind == CompressionType.ZSTD:
        return _decompress_zstd(body, max_size_bytes)
    raise ProtocolError(f"the body has compression type {kind}; expected 1 (LZ4), 2 (ZSTD), 3 or 0 (ZLIB)")


def _inflate(body: bytes, max_size_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, max_size_bytes + 1)
    except zlib.error as error:
        raise ProtocolError(f"the body is not a ZLIB stream: {error}") from error
    if len(plain) > max_size_bytes:
        raise BodyTooLargeError(max_size_bytes)
    if not inflater.eof:
        raise ProtocolError("the body is a ZLIB stream that is cut short")
    return plain


def _decompress_lz4(body: bytes, max_size_bytes: int) -> bytes:
    # lz4 and zstandard are imported at their first use, because they load slowly and most topics do not need them
    import lz4.frame  # type: ignore[import-untyped]

    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        plain = bytes(decompressor.decompress(body, max_length=max_size_bytes + 1))
        if len(plain) > max_size_bytes:
            raise BodyTooLargeError(max_size_bytes)
        if not decompressor.eof:
            raise ProtocolError("the body is an LZ4 frame that is cut short")
        if not decompressor.unused_data:
            return plain
        return _join_frames(body, _LZ4_SLICE_BYTES, lz4.frame.LZ4FrameDecompressor, max_size_bytes)
    except (RuntimeError, ValueError, EOFError) as error:
        raise ProtocolError(f"the body is not an LZ4 frame: {error}") from error


def _decompress_zstd(body: bytes, max_size_bytes: int) -> bytes:
    import zstandard

    try:
        size = zstandard.get_frame_parameters(body).content_size
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            # Java writes no size, and the library allocates the maximum at once. So try a likely size first.
            sizes = [min(max_size_bytes, _LIKELY_RATIO * len(body)), max_size_bytes]
        elif size > max_size_bytes:
            raise BodyTooLargeError(max_size_bytes)
        else:
            sizes = [size]
        for most in sizes:
            with contextlib.suppress(zstandard.ZstdError):
                return decompressor.decompress(body, max_output_size=most, allow_extra_data=False)
        # the body has several frames, exceeds the limit or is damaged
        return _join_frames(body, _ZSTD_SLICE_BYTES, decompressor.decompressobj, max_size_bytes)
    except zstandard.ZstdError as error:
        raise ProtocolError(f"the body is not a ZSTD frame: {error}") from error


def _join_frames(body: bytes, slice_bytes: int, start: Callable[[], _Frame], max_size_bytes: int) -> bytes:
    """Decompress a body of several frames, which Java accepts too. Raises BodyTooLargeError and ProtocolError.

    The input is fed in slices, so that one step decompresses to at most a few MiB. Slices also limit how many bytes are
    copied as `unused_data` after each frame, which may be tiny.
    """
    parts: list[bytes] = []
    size, frame = 0, start()
    for at in range(0, len(body), slice_bytes):
        rest = body[at : at + slice_bytes]
        while rest:
            if frame.eof:
                frame = start()
            part = frame.decompress(rest)
            size += len(part)
            if size > max_size_bytes:
                raise BodyTooLargeError(max_size_bytes)
            parts.append(part)
            rest = frame.unused_data or b"" if frame.eof else b""
    if not frame.eof:
        raise ProtocolError("the compressed body is cut short in its last frame")
    return b"".join(parts)


# Bodies up to these sizes (before and after opening) are opened within a few milliseconds, so they need no thread.
MAX_INLINE_STORED_BYTES: Final = 64 * 1024
MAX_INLINE_OPENED_BYTES: Final = 1024 * 1024
NO_SIZE_LIMIT: Final = 2**63


class BlockDecompression:
    """The opening of one block's bodies. Call `at_once`, then `rest` if `at_once` returned False, then `finish`.

    After the block exceeds `room_bytes`, no body is opened. A batch's messages with an offset below `low` are omitted.
    Without `unwraps`, batches count as corrupt. With `ends_at_corrupt`, nothing is opened after a corrupt message.
    """

    def __init__(
        self,
        block: MessageBlock,
        max_body_size: int = MAX_BODY_BYTES,
        room_bytes: int = NO_SIZE_LIMIT,
        low: int = 0,
        *,
        unwraps: bool = True,
        ends_at_corrupt: bool = False,
    ) -> None:
        self.cancelled = False  # set by the caller if it does not need the result any more
        self._block = block
        self._max = max_body_size
        self._room = room_bytes
        self._low = low
        self._unwraps = unwraps
        self._ends_at_corrupt = ends_at_corrupt
        self._next = 0  # index in block.messages
        self._opened: list[Message] = []
        self._corrupt: list[CorruptMessage] = []
        self._records: list[bytes] = [block.data]  # followed by the records created for messages of batches
        self._size = len(block.data)
        self._end = len(block.data)

    def open_quickly(self) -> bool:
        """Open bodies for at most a few milliseconds. Returns whether this was enough, so that `rest` is not needed."""
        stored = sum(message.stored_size for message in self._block.messages if message.is_body_encoded)
        return stored <= MAX_INLINE_STORED_BYTES and self._open(
            min(self._max, MAX_INLINE_OPENED_BYTES), MAX_INLINE_OPENED_BYTES
        )

    def rest(self) -> None:
        """Open the remaining bodies up to the block's memory limit. May run in another thread."""
        self._open(self._max, NO_SIZE_LIMIT)

    def finish(self) -> list[Message]:
        """Replace the block's messages by the opened messages. Returns the unopened messages.

        The block does not keep references to the unopened messages, because they refer to the block, and such a cycle
        is freed only by the garbage collector.
        """
        block, left = self._block, self._block.messages[self._next :]
        if left:
            block.first_unopened_offset = left[0].queue_offset
            block.corrupt = [one for one in block.corrupt if one.message.byte_position < left[0].byte_position]
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
        """Open the next bodies. Returns False if a body exceeds `most_bytes`, or this call's bodies `all_bytes`."""
        messages, before = self._block.messages, self._size
        while self._next < len(messages) and not self.cancelled:
            message = messages[self._next]
            if self._corrupt and self._ends_at_corrupt:
                return True
            if not message.is_body_encoded:
                if message.stored_size > self._max:
                    self._corrupt.append(CorruptMessage(message, str(BodyTooLargeError(self._max))))
                else:
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
            raise ProtocolError("the message is a whole batch (queue.type=BatchCQ), which POP cannot acknowledge")
        if sys_flag & COMPRESSED:
            body = decompress(body, sys_flag, most_bytes)
        if sys_flag & NEED_UNWRAP:
            self._unwrap(message, body)
        else:
            message.set_opened_body(body)
            self._size += len(body)
            self._opened.append(message)

    def _unwrap(self, batch: Message, body: bytes) -> None:
        """Append each message of a batch to the opened messages, with a separate record."""
        head, topic = batch.record_parts()
        found = batch_member_records(head, topic, batch.queue_offset, body)
        announced = batch.properties.get(INNER_NUM, "")
        if announced.isdecimal() and announced != str(len(found)):  # int() rejects thousands of digits
            raise ProtocolError(f"a batch should have {announced[:20]} messages, but has {len(found)}")
        for offset, (record, body_size) in enumerate(found, batch.queue_offset):
            if offset >= self._low:
                start, body_start = self._end, self._end + len(head)
                self._records.append(record)
                self._end += len(record)
                self._size += len(record)
                self._opened.append(
                    Message().set_position(
                        self._block, start, body_start, body_start + body_size, offset, batch.store_timestamp
                    )
                )
