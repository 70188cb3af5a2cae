"""Records of sent messages in the trace topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from rmqd.client.client_options import ClientOptions, TraceOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.client.sending.trace_dispatcher import TracedProducer
from rmqd.codes import RequestCode, ResponseCode
from rmqd.runtime.clock import SystemClock
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.send_headers import SendMessageRequestHeaderV2
from tests.client.peer import Peer, Reply, route_of, routes, stored
from tests.wire.trace_reader import read_trace

SEND = RequestCode.SEND_MESSAGE_V2
TRACES = "RMQ_SYS_TRACE_TOPIC"


class World:
    """A broker that is its own name server; `says` are further fields of its send responses."""

    def __init__(self, peer: Peer) -> None:
        self.says: dict[str, str] = {}
        self.code = ResponseCode.SUCCESS
        self.peer = peer
        by_topic = {topic: route_of({"b0": peer.address}, queues=1) for topic in ("orders", "NS%orders", TRACES)}
        peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes(by_topic))
        peer.on(SEND, self._store)

    async def send(self, message: OutgoingMessage, namespace: str = "") -> tuple[str, list[dict[str, object]]]:
        """Send a message and return its id and all records of the trace topic."""
        client = ClientInstance(ClientOptions(nameservers=(self.peer.address,), namespace=namespace))
        try:
            producer = TracedProducer(
                client.producer,
                client.routes,
                TraceOptions(TRACES, 10),
                SystemClock(),
                namespace=client.options.namespace,
            )
            result = await producer.send(message)
            await producer.dispatcher.close()
        finally:
            await client.close()
        sent = [one for one in self.peer.got(SEND) if _header(one).topic == TRACES]
        return result.msg_id, [record for one in sent for record in read_trace(one.body)]

    def _store(self, command: RemotingCommand) -> Reply:
        reply = stored(queue_id=0)
        return replace(reply, code=self.code, ext_fields={**reply.ext_fields, **self.says})


def _header(command: RemotingCommand) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2.from_ext_fields(command.ext_fields)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with Peer() as peer:
        yield World(peer)


async def test_a_sent_message_has_a_trace_record(world: World) -> None:
    world.says = {"MSG_REGION": "north", "TRACE_ON": "true"}
    msg_id, [record] = await world.send(OutgoingMessage("orders", b"four", "paid", "k1 k2"))
    assert record.pop("time")
    assert record.pop("offset_id") == stored(queue_id=0).ext_fields["msgId"]
    assert int(str(record.pop("cost"))) >= 0
    assert record == {
        "type": "Pub", "region": "north", "group": "CLIENT_INNER_PRODUCER", "topic": "orders", "id": msg_id,
        "tags": "paid", "keys": "k1 k2", "host": world.peer.address, "length": 4, "kind": 0, "success": True,
    }  # fmt: skip


async def test_a_delayed_message_is_traced_as_delayed(world: World) -> None:
    _, [record] = await world.send(OutgoingMessage("orders", b"x", delay_level=3))
    assert (record["kind"], record["region"], record["tags"]) == (3, "DefaultRegion", "null")


async def test_a_flush_timeout_is_not_traced_as_a_success_as_in_java(world: World) -> None:
    world.code = ResponseCode.FLUSH_DISK_TIMEOUT
    _, [record] = await world.send(OutgoingMessage("orders", b"x"))
    assert record["success"] is False


async def test_a_broker_with_tracing_off_gets_no_trace(world: World) -> None:
    world.says = {"TRACE_ON": "false"}
    assert (await world.send(OutgoingMessage("orders", b"x")))[1] == []


async def test_topics_are_traced_without_the_namespace(world: World) -> None:
    _, [record] = await world.send(OutgoingMessage("NS%orders", b"x"), namespace="NS")
    assert record["topic"] == "orders"
