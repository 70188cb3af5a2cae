"""An event loop whose time jumps whenever nothing is left to do, with connections in memory."""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from rmqd.codes import RequestCode
from rmqd.consumer.offsets.pending_commits import CLOSED_CONNECTION_SECONDS
from rmqd.wire.command import (
    RESPONSE_FLAG,
    FrameDecoder,
    RemotingCommand,
    decode_command,
    encode_command,
    encode_request,
)
from tests.client.peer import Reply, Script


class _Jumping(selectors.SelectSelector):
    """Never waits: its time advances by the timeout instead."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everybody waits, and nothing will come")
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Connects to the peers in `peers`, by their port."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        self.peers: dict[int, VirtualPeer] = {}

    def time(self) -> float:
        return self._jumping.now

    def end(self) -> None:
        """Cancel all remaining tasks, and close."""
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.close()

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        peer = self.peers.get(int(port))
        await asyncio.sleep(0.001)
        if peer is None or not peer.listens:
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = factory()
        transport = _Transport(self, protocol, peer)
        peer.transports.append(transport)
        protocol.connection_made(transport)
        return transport, protocol

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, int(port or 0)))]


class _Transport(asyncio.Transport):
    """The client's end of a connection, which the peer can cut."""

    def __init__(self, loop: VirtualLoop, protocol: asyncio.Protocol, peer: VirtualPeer) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._peer = peer
        self._decoder = FrameDecoder()
        self.is_open = True
        self.closed_at = float("inf")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_open:
            for payload in self._decoder.feed(bytes(data)):
                self._peer.received(self, decode_command(payload))

    def answer(self, frame: bytes) -> None:
        if self.is_open:
            self._loop.call_soon(self._deliver, frame)

    def _deliver(self, frame: bytes) -> None:
        if self.is_open:
            self._protocol.data_received(frame)

    def close(self) -> None:
        if self.is_open:
            self.is_open, self.closed_at = False, self._loop.time()
            self._peer.transports.remove(self)
            self._loop.call_soon(self._protocol.connection_lost, None)
            self._peer.lost(self)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return not self.is_open

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class VirtualPeer:
    """Answers by script, as tests.client.peer.Peer does, each request after a random time and in random order."""

    ports = itertools.count(10_000)

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.port = next(self.ports)
        self.address = f"127.0.0.1:{self.port}"
        self.listens = True
        self.transports: list[_Transport] = []
        self.sender: _Transport | None = None  # the sender of the request whose script is called
        self.on_lost: Callable[[_Transport], object] = lambda _: None
        self.slow = 0.05
        """The share of requests held for up to `slow_seconds`, before they are processed or before the response."""
        self.slow_seconds = 1.5
        self._chance = chance
        self._scripts: dict[int, Script] = {}
        self._opaque = itertools.count(900_000)
        self._tasks: set[asyncio.Task[None]] = set()
        loop.peers[self.port] = self

    def on(self, code: RequestCode, answer: Script) -> None:
        """Set the script for a request code."""
        self._scripts[code] = answer

    async def push(
        self, code: RequestCode, ext_fields: Mapping[str, str], body: bytes = b"", *, oneway: bool = False
    ) -> int:
        """Send a request to every connected client."""
        opaque = next(self._opaque)
        frame = encode_request(code, opaque, dict(ext_fields), body, oneway=oneway)
        for transport in list(self.transports):
            asyncio.get_running_loop().call_later(self._seconds(), transport.answer, frame)
        return opaque

    def cut(self) -> None:
        """Close every connection; requests that were read are still processed."""
        for transport in list(self.transports):
            transport.close()

    def cut_one(self) -> None:
        """Close the connection of one client in the same way."""
        if self.transports:
            self._chance.choice(self.transports).close()

    def die(self) -> None:
        """Close every connection and drop the requests that were read."""
        for task in self._tasks:
            task.cancel()
        self.cut()

    def lost(self, transport: _Transport) -> None:
        self.on_lost(transport)

    def received(self, transport: _Transport, command: RemotingCommand) -> None:
        if not command.is_response:
            task = asyncio.get_running_loop().create_task(self._take(transport, command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take(self, transport: _Transport, command: RemotingCommand) -> None:
        await asyncio.sleep(self._seconds())
        if asyncio.get_running_loop().time() - transport.closed_at > CLOSED_CONNECTION_SECONDS:
            return  # docs/proof/ownership.md: how long a broker may process requests it has read
        script = self._scripts.get(command.code)
        self.sender = transport
        answer: Any = Reply() if script is None else script(command)
        try:
            reply = await answer if isinstance(answer, Awaitable) else answer
        finally:
            if isinstance(answer, Coroutine):
                answer.close()
        await asyncio.sleep(self._seconds())
        if reply is not None and not command.is_oneway:
            fields, remark = dict(reply.ext_fields), reply.remark or None
            answer = RemotingCommand(reply.code, command.opaque, RESPONSE_FLAG, fields, reply.body, 0, remark)
            transport.answer(encode_command(answer))

    def _seconds(self) -> float:
        if self._chance.random() < self.slow:
            return self._chance.uniform(0, self.slow_seconds)
        return self._chance.uniform(0, 0.01)
