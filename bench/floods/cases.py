"""The cases: the peer's actions, and the condition that ends the case."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import zstandard

from bench.floods.flooded import GROUP, TOPIC, Settings
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.group_bodies import ResetOffsetBody
from rmqd.wire.command import RemotingCommand, encode_request
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import CompressionType
from tests.client.peer import Peer, Reply, route_of
from tests.client.raw_server import RawServer
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.wire.compressing import compress, compressed_flag

MIB: Final = 1 << 20
POLL_SECONDS: Final = 0.02
UNKNOWN_CODE: Final = 4711
STORM_SECONDS: Final = 8.0
RUBBISH: Final = b"HTTP/1.1 400 Bad Request\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Stage:
    """The peer, which acts as name server and broker."""

    peer: Peer
    broker: ScriptedBroker
    queue: MessageQueue


@dataclass(frozen=True, slots=True)
class Case:
    """One flood. `begin` returns a remark when the daemon has processed the flood."""

    name: str
    begin: Callable[[Stage], Awaitable[str]]
    settings: Settings = field(default_factory=Settings)


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` returns a true value."""
    while not condition():  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(POLL_SECONDS)


async def running_infos(count: int, stage: Stage) -> str:
    """A broker requests the group's running info, with the stacks of all threads."""
    fields = {"consumerGroup": GROUP, "jstackEnable": "true", "clientId": "x"}
    for _ in range(count):
        await stage.peer.push(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    await until(lambda: len(stage.peer.answers) >= count)
    return _answered(stage)


async def unknown_requests(count: int, stage: Stage) -> str:
    """A broker sends unknown requests in one piece."""
    frames = b"".join(encode_request(UNKNOWN_CODE, number, {}) for number in range(count))
    stage.peer.send(frames)
    await until(lambda: len(stage.peer.answers) >= count)
    return _answered(stage)


async def reset(count: int, as_list: bool, stage: Stage) -> str:
    """A broker pushes a reset of very many queues; the group has one of them."""
    await stage.broker.store(stage.queue, b"0", b"1")
    await until(lambda: stage.broker.offsets.get((GROUP, stage.queue)) == 2)
    before = len(stage.broker.commits)
    body = ResetOffsetBody({MessageQueue(TOPIC, BROKER, number): 1 for number in range(count)})
    fields = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"}
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    await stage.peer.push(code, fields, body.to_json(as_list=as_list), oneway=True)
    await until(lambda: (stage.queue, 1) in stage.broker.commits[before:])
    return ""


async def route(body: Callable[[Stage], bytes], stage: Stage) -> str:
    """A name server returns an absurd route once, and is queried three more times."""
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    absurd, given = Reply(body=body(stage)), list[bool]()

    def answer(command: RemotingCommand) -> Reply:
        if command.ext_fields["topic"] == TOPIC:
            given.append(True)
            if len(given) == 1:
                return absurd
        return Reply(ResponseCode.SYSTEM_BUSY, "later")

    stage.peer.on(code, answer)
    await until(lambda: len(given) > 3)  # the daemon uses the route after reading it
    return ""


def loose(stage: Stage) -> bytes:
    """Return a huge route of tiny objects, nearly a full frame, in the dialect that the fast parser cannot read."""
    return b'{"queueDatas":[],"brokerDatas":[],"x":[' + b"{0:1}," * ((16 * MIB - 1000) // 6) + b"{0:1}]}"


def very_long(stage: Stage) -> bytes:
    """Return the route of a topic with a million queues."""
    return route_of({BROKER: stage.peer.address}, 1_000_000).to_json()


async def bombs(kind: CompressionType, plain_mib: float, count: int, stage: Stage) -> str:
    """The broker has small messages that decompress to large ones."""
    body = bytes(int(plain_mib * MIB))
    if kind is CompressionType.ZSTD:  # without the size in front, like Java's
        stream = zstandard.ZstdCompressor().compressobj()
        packed = stream.compress(body) + stream.flush()
    else:
        packed = compress(body, kind)
    del body
    await stage.broker.store(stage.queue, *[packed] * count, sys_flag=compressed_flag(kind))
    await until(lambda: stage.broker.offsets.get((GROUP, stage.queue)) == count)
    return f"{len(packed) // 1024} KiB each"


async def large_messages(count: int, stage: Stage) -> str:
    """The broker has messages of 1 MiB, for a handler that leaves garbage."""
    await stage.broker.store(stage.queue, *[bytes(MIB)] * count)
    await until(lambda: stage.broker.offsets.get((GROUP, stage.queue)) == count)
    return ""


async def rubbish(stage: Stage) -> str:
    """A server that is not a broker answers at a broker's address. Returns the number of connections."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(RUBBISH)
        await reader.read()

    async with RawServer(answer) as server:
        elsewhere = route_of({"b": server.address}, 1)
        stage.peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Reply(body=elsewhere.to_json()))
        await until(lambda: server.accepted)
        await asyncio.sleep(STORM_SECONDS)
        return f"{server.accepted} connections"


def _answered(stage: Stage) -> str:
    busy = sum(answer.code == ResponseCode.SYSTEM_BUSY for answer in stage.peer.answers.values())
    return f"{busy} rejected as busy"


def _bombs(kind: CompressionType, plain_mib: float, count: int, pull_batch: int) -> Case:
    name = f"{count} x {plain_mib:g} MiB, {kind.name}"
    return Case(name, partial(bombs, kind, plain_mib, count), Settings(pull_batch=pull_batch))


# 48 bodies of LZ4 fit into a frame
_LARGE_BATCHES: Final = {CompressionType.ZLIB: 128, CompressionType.ZSTD: 128, CompressionType.LZ4: 48}

CASES: Final = (
    Case("5,000 running infos", partial(running_infos, 5000)),
    Case("20,000 unknown requests", partial(unknown_requests, 20_000)),
    Case("reset of 20,000 queues, map", partial(reset, 20_000, False)),
    Case("reset of 20,000 queues, list", partial(reset, 20_000, True)),
    Case("route of 16 MiB", partial(route, loose)),
    Case("route of 1,000,000 queues", partial(route, very_long)),
    *(_bombs(kind, 15.9, 32, 32) for kind in _LARGE_BATCHES),
    *(_bombs(kind, 63, 128, most) for kind, most in _LARGE_BATCHES.items()),
    Case("rubbish from a broker, 8 s", rubbish),
    Case("garbage of 1,500 x 1 MiB", partial(large_messages, 1500), Settings(pull_batch=8, litters=True)),
)
