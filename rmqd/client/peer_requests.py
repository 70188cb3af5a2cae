"""What brokers ask of this client, and its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from rmqd.client.connection import RemotingConnection
from rmqd.codes import ResponseCode
from rmqd.errors import RmqdError
from rmqd.wire.command import RemotingCommand, encode_response

log = structlog.get_logger(__name__)

Reply = tuple[int, str, dict[str, str], bytes]  # code, remark, ext fields, body
RequestHandler = Callable[[RemotingCommand, str], Awaitable[Reply | None]]


class PeerRequests:
    """Has each request answered by the handler of its code, in tasks that `close` ends."""

    def __init__(self) -> None:
        self._handlers: dict[int, RequestHandler] = {}
        self._answering: set[asyncio.Task[None]] = set()

    def on_request(self, code: int, handler: RequestHandler) -> None:
        """Let `handler(command, address)` answer requests with this code; None for a one-way request."""
        self._handlers[code] = handler

    def asked(self, connection: RemotingConnection, command: RemotingCommand) -> None:
        """A request came."""
        task = asyncio.create_task(self._answer(connection, command), name=f"answer:{command.code}")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def close(self) -> None:
        """Answer nothing more."""
        tasks = list(self._answering)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, connection: RemotingConnection, command: RemotingCommand) -> None:
        reply: Reply | None
        handler = self._handlers.get(command.code)
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
            except Exception as error:  # our fault, but the peer waits for an answer
                log.exception("request.failed", code=int(command.code), address=connection.address)
                reply = (ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}", {}, b"")
        if reply is not None and not command.is_oneway and connection.is_open:
            connection.write(encode_response(command, *reply))
