"""The reader that splits a connection's bytes into commands, and passes on a limited number in each event loop turn."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from rmqd.errors import ProtocolError
from rmqd.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, FrameDecoder, RemotingCommand, decode_command

MAX_FRAMES_PER_TURN: Final = 128  # per turn of the event loop; takes a few milliseconds if all are rejected requests
_KNOWN_FLAGS: Final = RESPONSE_FLAG | ONEWAY_FLAG

Taker = Callable[[RemotingCommand], None]


class FrameReader:
    """The reader of one connection's frames. It passes on the commands in order.

    If a peer sends very many commands at once, reading is paused, and the commands are passed on in several turns of
    the event loop, so that other connections can run. An error inside `feed` is raised to its caller. An error in a
    later turn has no caller, so it is passed to `on_error`.
    """

    def __init__(
        self,
        max_frame_size_bytes: int,
        on_reply: Taker,
        on_request: Taker,
        on_error: Callable[[Exception], None],
        on_passed: Callable[[], None],
    ) -> None:
        """`on_passed` is called after commands were passed on outside of `feed`, in a later turn of the event loop."""
        self._decoder = FrameDecoder(max_frame_size_bytes)
        self._on_reply = on_reply
        self._on_request = on_request
        self._on_error = on_error
        self._on_passed = on_passed
        self._waiting: list[bytes] = []  # frames for the next turns; while there are such frames, reading is paused
        self._at_end: Callable[[], None] | None = None

    @property
    def is_within_frame(self) -> bool:
        """Whether an incomplete frame has been received."""
        return self._decoder.held_bytes > 0

    def feed(self, data: bytes, transport: asyncio.Transport) -> bool:
        """Accept received bytes. Returns whether they completed a frame. Raises ProtocolError if decoding fails."""
        payloads = self._decoder.feed(data)
        if self._waiting or len(payloads) > MAX_FRAMES_PER_TURN:
            self._put_off(payloads, transport)
        else:
            self._take(payloads)
        return bool(payloads)

    def call_when_done(self, at_end: Callable[[], None]) -> None:
        """Call `at_end` when all received commands are passed on; at once if no command waits.

        A peer may respond and close the connection at the same time. Over TLS, both are received together.
        """
        if self._waiting:
            self._at_end = at_end
        else:
            at_end()

    def stop(self) -> None:
        """Discard the commands that were not passed on yet."""
        self._waiting = []

    def _put_off(self, payloads: list[bytes], transport: asyncio.Transport) -> None:
        if not self._waiting:
            if not transport.is_closing():
                transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on, transport)
        self._waiting += payloads  # TLS may deliver further bytes, received earlier, although reading is paused

    def _go_on(self, transport: asyncio.Transport) -> None:
        some, self._waiting = self._waiting[:MAX_FRAMES_PER_TURN], self._waiting[MAX_FRAMES_PER_TURN:]
        try:
            self._take(some)
        except Exception as error:  # noqa: BLE001 it has no caller that would see it
            self._on_error(error)
        self._on_passed()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on, transport)
        elif self._at_end is not None:
            self._at_end()
        elif not transport.is_closing():
            transport.resume_reading()

    def _take(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            command = decode_command(payload)
            if unknown := command.flag & ~_KNOWN_FLAGS & 0xFFFFFFFF:
                raise ProtocolError(f"a command's flag has bits that rmqd does not know: 0x{unknown:X}")
            if command.is_response:
                self._on_reply(command)
            else:
                self._on_request(command)


T = TypeVar("T")

MAX_BYTES_PARSED_INLINE: Final = 32 * 1024  # a body in fastjson's dialect takes about one microsecond per byte


async def parse_body(parse: Callable[[bytes], T], body: bytes) -> T:
    """Return the result of `parse(body)`, or raise its error. A large body is parsed in another thread."""
    if len(body) <= MAX_BYTES_PARSED_INLINE:
        return parse(body)
    return await asyncio.get_running_loop().run_in_executor(_thread(), parse, body)


@functools.cache
def _thread() -> ThreadPoolExecutor:
    """Return the executor that parses bodies, one at a time to limit memory. Handlers may fill asyncio's executor."""
    return ThreadPoolExecutor(1, "rmqd-parsing")
