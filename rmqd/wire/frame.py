"""Cuts a TCP byte stream into remoting frames.

A frame is a 4 byte big-endian length and that many bytes of payload (protocol: `NettyDecoder.java`).
"""

from __future__ import annotations

from struct import Struct

from rmqd.errors import ProtocolError

MAX_FRAME_SIZE_BYTES = 16 * 1024 * 1024  # Java: com.rocketmq.remoting.frameMaxLength
LENGTH = Struct(">I")


class FrameDecoder:
    """Bytes in, whole payloads out; holds at most one unfinished frame."""

    __slots__ = ("_chunks", "_max_frame_size", "_wanted", "held_bytes")

    def __init__(self, max_frame_size_bytes: int = MAX_FRAME_SIZE_BYTES) -> None:
        self._max_frame_size = max_frame_size_bytes
        self._chunks: list[bytes] = []
        self.held_bytes = 0
        """Bytes of the unfinished frame that have arrived."""
        self._wanted = LENGTH.size

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads that `data` completes, without their length field.

        Raises ProtocolError as soon as a length above the limit is seen, before that frame is read.
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
