"""Requests that brokers send to this client, and its responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.codes import ResponseCode
from rmqd.errors import RemotingError, RmqdError
from rmqd.wire.command import RemotingCommand, encode_response

log = structlog.get_logger(__name__)

Reply = tuple[int, str, dict[str, str], bytes]  # code, remark, ext fields, body
RequestHandler = Callable[[RemotingCommand, str], Awaitable[Reply | None]]
NoticeHandler = Callable[[RemotingCommand, str], None]

MAX_REQUESTS_AT_ONCE: Final = 64  # requests of one connection that are answered concurrently
MAX_REPLY_SECONDS: Final = 3.0  # limit for writing a response to the socket


class PeerRequests:
    """The requests that brokers send to this client. Each is answered in a task, which `close` cancels.

    At most MAX_REQUESTS_AT_ONCE requests of a connection are answered at once; others are rejected. A response is
    dropped if the peer does not read it in time. So the memory for a peer's requests is limited, whatever it sends.
    """

    def __init__(self) -> None:
        self.handlers: dict[int, RequestHandler] = {}
        """The handlers by request code. A handler returns the response, or None to send no response."""
        self.notice_handlers: dict[int, NoticeHandler] = {}
        """The callbacks by request code, for requests that need no response. They must not block or raise."""
        self._answering: set[asyncio.Task[None]] = set()
        self._under_way: Counter[RemotingConnection] = Counter()

    def on_request(self, connection: RemotingConnection, command: RemotingCommand) -> None:
        """Called with a request that a connection received. Starts a task that answers the request."""
        if (notice := self.notice_handlers.get(command.code)) is not None:
            notice(command, connection.address)
            return
        if self._under_way[connection] >= MAX_REQUESTS_AT_ONCE:
            self._turn_away(connection, command)
            return
        self._under_way[connection] += 1
        task = asyncio.create_task(self._answer(connection, command), name=f"answer:{command.code}")
        self._answering.add(task)
        task.add_done_callback(lambda task: self._answered(connection, task))

    def _answered(self, connection: RemotingConnection, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        self._under_way[connection] -= 1
        if not self._under_way[connection]:
            del self._under_way[connection]

    def _turn_away(self, connection: RemotingConnection, command: RemotingCommand) -> None:
        log.warning(
            "request.turned_away", code=int(command.code), address=connection.address, at_once=MAX_REQUESTS_AT_ONCE
        )
        if connection.is_open and connection.is_writable and not command.is_oneway:
            remark = f"this client is already answering {MAX_REQUESTS_AT_ONCE} of your requests; try again later"
            connection.write(encode_response(command, ResponseCode.SYSTEM_BUSY, remark))

    async def close(self) -> None:
        """Cancel all tasks that answer requests, and wait for their end."""
        tasks = list(self._answering)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, connection: RemotingConnection, command: RemotingCommand) -> None:
        reply: Reply | None
        handler = self.handlers.get(command.code)
        if handler is None:
            log.warning("request.unsupported", code=int(command.code), address=connection.address)
            remark = f"request type {command.code} not supported"
            reply = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark, {}, b"")
        else:
            try:
                reply = await handler(command, connection.address)
            except RmqdError as error:
                log.warning("request.refused", code=int(command.code), address=connection.address, error=str(error))
                reply = (ResponseCode.SYSTEM_ERROR, str(error), {}, b"")
            except Exception as error:  # a bug in rmqd; respond anyway, because the peer waits
                log.exception("request.failed", code=int(command.code), address=connection.address)
                reply = (ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}", {}, b"")
        if reply is None or command.is_oneway:
            return
        with contextlib.suppress(RemotingError):  # the peer has gone, or does not read
            await connection.wait_writable(MAX_REPLY_SECONDS)
            connection.write(encode_response(command, *reply))
