"""Messages between the daemon and its child processes, over a socket pair that only the two of them hold.

Messages are pickles after a four byte length. Both ends are the same program started by the same user, so nothing
foreign is unpickled.
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
    """What a worker has to build before it is told to run it."""

    config: RootConfig
    worker: int
    workers: int
    pauses: Mapping[str, tuple[PauseScope, ...]]
    """The paused scopes by group."""
    import_path: tuple[str, ...]
    """The parent's sys.path. The worker is started in another way, and must find the same handlers."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of the parent. It is answered by one Answer with the same number."""

    number: int
    action: Action
    argument: Any = None


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """An answer of a child. Number 0 answers no request: it has the child's last snapshot before it ends."""

    number: int
    value: Any = None
    problems: tuple[str, ...] = field(default=())
    """Why a configuration was refused."""


class ChildChannel:
    """One end of the socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> Self:
        """A channel over a connected socket. The channel closes the socket."""
        return cls(*await asyncio.open_connection(sock=sock))

    def post(self, message: Request | ChildAnswer) -> None:
        """Send a message. If the other end is gone the message is dropped; `receive` reports the end."""
        if self._writer.is_closing():
            return  # writing would raise in uvloop
        data = pickle.dumps(message)
        self._writer.write(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> Any:
        """The next message, or None when the other end is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self) -> None:
        """Send what is left, and close."""
        try:
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except ConnectionError:
            pass  # the other end closed first
