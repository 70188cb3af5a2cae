"""Requests to one embedded RocketMQ: its broker and its name server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.topic_headers import CreateTopicRequestHeader
from tests.broker.peer import Peer, connected


@dataclass(frozen=True, slots=True)
class Asking:
    """Connections to the broker and the name server."""

    rocketmq: EmbeddedRocketMQ
    broker: Peer
    name_server: Peer

    async def create(self, topic: str, queues: int = 2, **changed: Any) -> RemotingCommand:
        """Create or update a topic (request 17)."""
        values = {"topic": topic, "read_queue_nums": queues, "write_queue_nums": queues, **changed}
        header = CreateTopicRequestHeader(**values)
        return await self.broker.call(header.code, header.ext_fields())

    async def route(self, topic: str, **header: Any) -> RemotingCommand:
        """Query the route of a topic (request 105)."""
        return await self.name_server.call(105, {"topic": topic}, **header)


@contextlib.asynccontextmanager
async def asking(options: EmbeddedOptions | None = None) -> AsyncIterator[Asking]:
    """Run an embedded RocketMQ for the block."""
    async with (
        embedded_rocketmq(options) as rocketmq,
        connected(rocketmq.broker.address) as broker,
        connected(rocketmq.nameserver) as name_server,
    ):
        yield Asking(rocketmq, broker, name_server)


def told(reply: RemotingCommand) -> tuple[int, str | None]:
    """Return code and remark of a response."""
    return int(reply.code), reply.remark


def body(reply: RemotingCommand) -> Any:
    """Return the body, strict JSON, of a successful response."""
    assert reply.code == 0, reply.remark
    return json.loads(reply.body)
