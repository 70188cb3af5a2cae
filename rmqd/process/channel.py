"""What the parent and its workers say to each other, over a socket pair that only they hold.

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

Action = Literal["build", "check", "run", "snapshot", "pause", "resume", "apply", "stop", "hurry"]


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """What a worker is to build, before it is told to run."""

    config: RootConfig
    worker: int
    workers: int
    pauses: Mapping[str, tuple[PauseScope, ...]]
    """What operators paused, by group."""
    import_path: tuple[str, ...]
    """The parent's sys.path: the worker is started another way, and must find the same handlers."""


@dataclass(frozen=True, slots=True)
class Request:
    """From the parent; answered by one Answer with the same number."""

    number: int
    action: Action
    argument: Any = None


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """From a worker. Number 0 is no answer but its farewell: the last snapshot."""

    number: int
    value: Any = None
    problems: tuple[str, ...] = field(default=())
    """Why a configuration was refused."""


class ChildChannel:
    """One end of the pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> Self:
        """A channel over a connected socket, which it owns from now on."""
        return cls(*await asyncio.open_connection(sock=sock))

    def post(self, message: Request | ChildAnswer) -> None:
        """Send; what cannot be sent any more is dropped, as the reader hears of the end."""
        if self._writer.is_closing():
            return  # uvloop would raise
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
        """Flush and close."""
        try:
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except ConnectionError:
            pass  # the other end was faster
