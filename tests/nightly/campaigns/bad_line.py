"""BadLine: a TCP proxy for one broker that cuts, delays or resets a share of the frames in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from types import TracebackType
from typing import Self

from tests.rocketmq.spec import HOST, free_port

CUT, DELAY, RESET = "cut", "delayed", "reset"
DELAY_SECONDS = (0.1, 3.0)
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset, and discard unsent data


class BadLine:
    """Passes frames between clients and `target`. Clients connect to `address`.

    For a cut, half of the frame is passed, and the connection is closed. A delayed frame holds up all later ones. A
    reset replaces the frame with a connection reset for both the client and the target.
    """

    def __init__(self, target: str, seed: int) -> None:
        host, port = target.rsplit(":", 1)
        self.share = 0.0
        """The share of damaged frames, from 0 to 1. It may be changed at any time."""
        self.frames = 0
        self.damaged: Counter[str] = Counter()
        self._target = (host, int(port))
        self._random = random.Random(seed)
        # five digits like the target's, so that one address can replace the other at the same length
        self._port = free_port(set(), (0,))
        self.address = f"{HOST}:{self._port}"
        self._loop = asyncio.new_event_loop()
        self._lines: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name=f"bad line {self.address}")

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self._port)

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        try:
            with contextlib.suppress(OSError):
                from_target, to_target = await asyncio.open_connection(*self._target)
                try:
                    await self._pass_both_ways((from_client, to_target), (from_target, to_client))
                finally:
                    to_target.close()
        except asyncio.CancelledError:
            pass  # cancelled by `_end`; asyncio would log it
        finally:
            to_client.close()
            self._lines.discard(line)

    async def _pass_both_ways(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Run until either side closes, or damage ends both."""
        pumps = [asyncio.create_task(self._pass(*way)) for way in ways]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            ends = await asyncio.gather(*pumps, return_exceptions=True)
        if RESET in ends:
            for _, writer in ways:
                _reset(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
        """Pass frame by frame. Return CUT or RESET after such damage, None when either side closes."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(struct.unpack(">I", head)[0])
                damage = self._damage()
                if damage == RESET:
                    return RESET
                if damage == DELAY:
                    await asyncio.sleep(self._random.uniform(*DELAY_SECONDS))
                writer.write(frame[: len(frame) // 2] if damage == CUT else frame)
                await writer.drain()
                if damage == CUT:
                    return CUT
        return None

    def _damage(self) -> str | None:
        self.frames += 1
        if self._random.random() >= self.share:
            return None
        damage = self._random.choice((CUT, DELAY, RESET))
        self.damaged[damage] += 1
        return damage


def _reset(writer: asyncio.StreamWriter) -> None:
    end = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    writer.transport.abort()
