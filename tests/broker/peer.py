"""A client of the embedded broker that sends exactly the frames of a test."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable
from typing import Any

from rmqd.codes import LanguageCode
from rmqd.wire.bodies.heartbeat_data import ConsumerData, HeartbeatData, MessageModel, SubscriptionData
from rmqd.wire.command import VERSION, FrameDecoder, RemotingCommand, decode_command, encode_command, encode_response
from rmqd.wire.headers.send_headers import SendMessageRequestHeaderV2
from rmqd.wire.messages.properties import format_properties

PATIENCE_SECONDS = 25.0


class Peer:
    """One connection. Responses may be awaited in any order. Requests of the broker are collected in `requests`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests: list[RemotingCommand] = []
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder()
        self._opaques = itertools.count(1)
        self._replies: dict[int, RemotingCommand] = {}

    def post(
        self,
        code: int,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        language: LanguageCode = LanguageCode.PYTHON,
        version: int = VERSION,
    ) -> int:
        """Send a request, and return its opaque."""
        opaque = next(self._opaques)
        request = RemotingCommand(code, opaque, 0, ext_fields or {}, body, language=language, version=version)
        self._writer.write(encode_command(request))
        return opaque

    async def reply(self, opaque: int) -> RemotingCommand:
        """Return the response to an earlier request."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while opaque not in self._replies:
                assert await self._read(), "the broker closed the connection"
        return self._replies.pop(opaque)

    async def call(
        self, code: int, ext_fields: dict[str, str] | None = None, body: bytes = b"", **header: Any
    ) -> RemotingCommand:
        """Send a request, and return its response."""
        return await self.reply(self.post(code, ext_fields, body, **header))

    async def request(self, code: int) -> RemotingCommand:
        """Return the broker's next request with this code. Other requests before it are dropped."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                while self.requests:
                    request = self.requests.pop(0)
                    if request.code == code:
                        return request
                assert await self._read(), "the broker closed the connection"

    def answer(self, request: RemotingCommand, code: int = 0, remark: str | None = None, body: bytes = b"") -> None:
        """Respond to a request of the broker."""
        self._writer.write(encode_response(request, code, remark, body=body))

    async def closed(self) -> None:
        """Wait until the broker has closed the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._read():
                pass

    async def _read(self) -> bool:
        data = await self._reader.read(1 << 18)
        for payload in self._decoder.feed(data):
            command = decode_command(payload)
            if command.is_response:
                self._replies[command.opaque] = command
            else:
                self.requests.append(command)
        return bool(data)

    async def send(self, topic: str, body: bytes = b"x", queue_id: int = 0, **properties: str) -> RemotingCommand:
        """Send a message."""
        header = SendMessageRequestHeaderV2(
            producer_group="p",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties=format_properties(properties),
        )
        return await self.call(header.code, header.ext_fields(), body)

    async def heartbeat(
        self,
        group: str,
        subscriptions: Iterable[SubscriptionData],
        message_model: str = MessageModel.CLUSTERING,
        client_id: str = "peer",
    ) -> RemotingCommand:
        """Join a group with a heartbeat."""
        data = ConsumerData(group, tuple(subscriptions), message_model=message_model)
        return await self.call(34, {}, HeartbeatData(client_id, (data,)).to_json())

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[Peer]:
    """Connect to "host:port" for the duration of the block."""
    host, port = address.rsplit(":", 1)
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    try:
        yield peer
    finally:
        await peer.close()
