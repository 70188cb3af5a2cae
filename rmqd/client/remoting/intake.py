"""What comes on a connection, command by command, and so many of them in a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from rmqd.wire.command import RemotingCommand, decode_command
from rmqd.wire.frame import FrameDecoder

MOST_AT_ONCE: Final = 128  # in a turn of the loop: a few milliseconds, where all are requests that are turned away

Taker = Callable[[RemotingCommand], None]


class Intake:
    """Cuts bytes into frames and hands the commands on, in their order.

    A peer that sends very many at once is read no further until they are handed on, and other connections have their
    turns between. `on_error` hears of a frame that cannot be decoded, or of any other failure, where it was not `feed`
    that came to it: the event loop, which ends a connection whose `feed` raises, does not hear of it.
    """

    def __init__(
        self, max_frame_size_bytes: int, on_reply: Taker, on_request: Taker, on_error: Callable[[Exception], None]
    ) -> None:
        self._decoder = FrameDecoder(max_frame_size_bytes)
        self._on_reply = on_reply
        self._on_request = on_request
        self._on_error = on_error
        self._waiting: list[bytes] = []  # frames for the next turns; reading is paused while there are some
        self._at_end: Callable[[], None] | None = None

    @property
    def is_within_frame(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._decoder.held_bytes > 0

    def feed(self, data: bytes, transport: asyncio.Transport) -> bool:
        """Take what came; whether a frame ended. Raises ProtocolError for what cannot be decoded."""
        payloads = self._decoder.feed(data)
        if self._waiting or len(payloads) > MOST_AT_ONCE:
            self._put_off(payloads, transport)
        else:
            self._take(payloads)
        return bool(payloads)

    def finish(self, at_end: Callable[[], None]) -> None:
        """Call `at_end` once all that came is handed on; at once, where nothing waits.

        A peer that closes its connection may have answered just before: over TLS its end comes with its last bytes.
        """
        if self._waiting:
            self._at_end = at_end
        else:
            at_end()

    def stop(self) -> None:
        """Hand nothing more on."""
        self._waiting = []

    def _put_off(self, payloads: list[bytes], transport: asyncio.Transport) -> None:
        if not self._waiting:
            if not transport.is_closing():
                transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on, transport)
        self._waiting += payloads  # also what TLS had already when reading was paused

    def _go_on(self, transport: asyncio.Transport) -> None:
        some, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
        try:
            self._take(some)
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._on_error(error)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on, transport)
        elif self._at_end is not None:
            self._at_end()
        elif not transport.is_closing():
            transport.resume_reading()

    def _take(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            command = decode_command(payload)
            if command.is_response:
                self._on_reply(command)
            else:
                self._on_request(command)
