"""A scripted name server or broker on 127.0.0.1, and its usual answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.route_data import BrokerData, QueueData, TopicRouteData
from rmqd.wire.command import (
    RESPONSE_FLAG,
    VERSION,
    FrameDecoder,
    RemotingCommand,
    decode_command,
    encode_command,
    encode_request,
)
from tests.waiting import WAIT_SECONDS


@dataclass(frozen=True, slots=True)
class Reply:
    """The peer's answer to a request."""

    code: int = ResponseCode.SUCCESS
    remark: str = ""
    ext_fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


Script = Callable[[RemotingCommand], Reply | Awaitable[Reply | None] | None]


class Peer:
    """A server on a free port that answers by script; a request without a script gets an empty success.

    A script that returns None leaves the request unanswered. A script that waits does not delay other answers.
    `requests` has all received requests, in order.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[RemotingCommand] = []
        self.answers: dict[int, RemotingCommand] = {}
        self.connections = 0
        self.version = VERSION
        """The version number in the answers."""
        self.gate: Callable[[RemotingCommand], Reply | None] | None = None
        """What is asked before any script, and may answer in its place."""
        self._scripts: dict[int, Script] = {}
        self._came = asyncio.Condition()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._opaque = itertools.count(900_000)
        self._port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.down()

    async def listen(self) -> None:
        """Accept connections; again on the same port after `down`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Refuse connections and close the open ones, as if the process had died."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Close every open connection."""
        for writer in self._writers:
            writer.transport.abort()

    def on(self, code: RequestCode, answer: Reply | Script | None) -> None:
        """Set the answer to a request code; None leaves requests unanswered."""
        if isinstance(answer, Reply) or answer is None:
            self._scripts[code] = lambda _: answer
        else:
            self._scripts[code] = answer

    def got(self, code: RequestCode) -> list[RemotingCommand]:
        """The requests with this code so far."""
        return [request for request in self.requests if request.code == code]

    async def received(self, code: RequestCode, count: int = 1) -> list[RemotingCommand]:
        """Wait until `count` requests with this code were received; fail after `WAIT_SECONDS`."""
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._came:
                await self._came.wait_for(lambda: len(self.got(code)) >= count)
        except TimeoutError:
            codes = [RequestCode(request.code).name for request in self.requests]
            raise AssertionError(f"wanted {count} of {code.name}, and got {codes}") from None
        return self.got(code)

    async def push(
        self, code: RequestCode, ext_fields: Mapping[str, str], body: bytes = b"", *, oneway: bool = False
    ) -> int:
        """Send a request to every connected client. Return its opaque, the key of the answer in `answers`."""
        opaque = next(self._opaque)
        frame = encode_request(code, opaque, dict(ext_fields), body, oneway=oneway)
        for writer in self._writers:
            writer.write(frame)
        return opaque

    def send(self, data: bytes) -> None:
        """Send any bytes to every connected client."""
        for writer in self._writers:
            writer.write(data)

    async def ask(self, code: RequestCode, ext_fields: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
        """Send a request to the connected client and wait for its answer."""
        opaque = await self.push(code, ext_fields, body)
        async with asyncio.timeout(WAIT_SECONDS), self._came:
            await self._came.wait_for(lambda: opaque in self.answers)
        return self.answers[opaque]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        decoder = FrameDecoder()
        try:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                while data := await reader.read(65536):
                    for payload in decoder.feed(data):
                        await self._take(decode_command(payload), writer)
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _take(self, command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        async with self._came:
            if command.is_response:
                self.answers[command.opaque] = command
            else:
                self.requests.append(command)
            self._came.notify_all()
        if command.is_response or command.is_oneway:
            return
        script = self._scripts.get(command.code)
        refusal = None if self.gate is None else self.gate(command)
        reply = refusal or (Reply() if script is None else script(command))
        if isinstance(reply, Awaitable):
            task = asyncio.create_task(self._answer_later(command, reply, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if isinstance(reply, Coroutine):  # not awaited if the task is cancelled before it starts
                task.add_done_callback(lambda _: reply.close())
        elif reply is not None:
            writer.write(self._encode(command, reply))

    async def _answer_later(
        self, command: RemotingCommand, answer: Awaitable[Reply | None], writer: asyncio.StreamWriter
    ) -> None:
        if (reply := await answer) is not None:
            writer.write(self._encode(command, reply))

    def _encode(self, command: RemotingCommand, reply: Reply) -> bytes:
        fields, remark = dict(reply.ext_fields), reply.remark or None
        return encode_command(
            RemotingCommand(
                reply.code, command.opaque, RESPONSE_FLAG, fields, reply.body, 0, remark, version=self.version
            )
        )


def route_of(brokers: Mapping[str, str | Mapping[int, str]], queues: int = 4, perm: int = 6) -> TopicRouteData:
    """A topic's route: broker names with their master's address, or with all replicas' by id."""
    return TopicRouteData(
        tuple(QueueData(name, queues, queues, perm) for name in brokers),
        tuple(
            BrokerData("c", name, {0: addresses} if isinstance(addresses, str) else dict(addresses))
            for name, addresses in brokers.items()
        ),
    )


def routes(by_topic: Mapping[str, TopicRouteData]) -> Callable[[RemotingCommand], Reply]:
    """A name server's script: the routes in the mapping, which a test may change; other topics do not exist."""

    def answer(command: RemotingCommand) -> Reply:
        route = by_topic.get(command.ext_fields["topic"])
        if route is None:
            return Reply(ResponseCode.TOPIC_NOT_EXIST, "No topic route info in name server for the topic")
        return Reply(body=route.to_json())

    return answer


def stored(queue_id: int = 0, queue_offset: int = 7, code: ResponseCode = ResponseCode.SUCCESS) -> Reply:
    """A broker's answer to a message that it stored."""
    fields = {"msgId": "7F00000100002A9F0000000000000000", "queueId": str(queue_id), "queueOffset": str(queue_offset)}
    return Reply(code, ext_fields=fields)
