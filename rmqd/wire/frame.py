"""Cuts a TCP byte stream into remoting frames.

A frame is a length of 4 bytes (big-endian) and that many bytes of payload. Java: `NettyDecoder`.
"""

from __future__ import annotations

from struct import Struct

from rmqd.errors import ProtocolError

MAX_FRAME_SIZE_BYTES = 16 * 1024 * 1024  # Java: com.rocketmq.remoting.frameMaxLength
LENGTH = Struct(">I")


class FrameDecoder:
    """Turns received bytes into whole payloads. Holds at most one unfinished frame."""

    __slots__ = ("_chunks", "_max_frame_size", "_wanted", "held_bytes")

    def __init__(self, max_frame_size_bytes: int = MAX_FRAME_SIZE_BYTES) -> None:
        self._max_frame_size = max_frame_size_bytes
        self._chunks: list[bytes] = []
        self.held_bytes = 0
        """The number of received bytes of the unfinished frame."""
        self._wanted = LENGTH.size

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that `data` completes, without their length field.

        Raises ProtocolError if a length exceeds the limit, before that frame is read.
        """
        if self._chunks:
            self._chunks.append(data)
            self.held_bytes += len(data)
            if self.held_bytes < self._wanted:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        payloads: list[bytes] = []
        start, size = 0, len(data)
        while True:
            if size - start < LENGTH.size:
                self._wanted = LENGTH.size
                break
            (length,) = LENGTH.unpack_from(data, start)
            if length > self._max_frame_size:
                limit = self._max_frame_size
                raise ProtocolError(f"the peer announced a frame of {length} bytes; at most {limit} are read")
            end = start + LENGTH.size + length
            if end > size:
                self._wanted = end - start
                break
            payloads.append(data[start + LENGTH.size : end])
            start = end
        if start < size:
            self._chunks.append(data[start:])
        self.held_bytes = size - start
        return payloads
