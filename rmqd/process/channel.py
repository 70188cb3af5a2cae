"""Messages between the daemon and its child processes, over a socket pair that only the two processes hold.

Messages are pickles after a four-byte length. Both ends are the same program, started by the same user, so foreign data
is never unpickled.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from rmqd.config.model.root import RootConfig
from rmqd.consumer.pauses import PauseScope

_LENGTH = struct.Struct(">I")

Action = Literal[
    "build", "call", "check", "run", "snapshot", "pause", "resume", "apply", "stop", "hurry", "start", "revoke", "log",
    "end_calls", "so_far",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """The groups that a worker must build before it runs them."""

    config: RootConfig
    worker: int
    workers: int
    pauses: Mapping[str, tuple[PauseScope, ...]]
    """The paused scopes by group."""
    import_path: tuple[str, ...]
    """The parent's sys.path. The worker is started differently, but must find the same handlers."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the parent. One ChildAnswer with the same number responds to it."""

    number: int
    action: Action
    argument: Any = None


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """A response of a child. Number 0 belongs to no request: it has the child's last snapshot before its end."""

    number: int
    value: Any = None
    problems: tuple[str, ...] = field(default=())
    """The reasons why a configuration was refused."""


class ChildChannel:
    """One end of the socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> Self:
        """Open a channel over a connected socket, which the channel closes."""
        return cls(*await asyncio.open_connection(sock=sock))

    def post(self, message: Request | ChildAnswer) -> None:
        """Send a message. If the other end has closed, the message is dropped, and `receive` reports that end."""
        if self._writer.is_closing():
            return  # writing would raise in uvloop
        data = pickle.dumps(message)
        self._writer.write(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> Any:
        """Return the next message, or None when the other end has closed."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self) -> None:
        """Send pending messages, and close."""
        try:
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except ConnectionError:
            pass  # the other end closed first
