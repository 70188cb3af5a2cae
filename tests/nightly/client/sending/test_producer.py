"""Producer: the requests, the selected queues, and brokers that refuse a message."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.client.routing.route_table import RouteTable
from rmqd.client.sending.outgoing_message import MessageQueueSelector, OutgoingMessage, select_by_hash, select_by_id
from rmqd.client.sending.producer import Producer
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import (
    BrokerTooOldError,
    RemotingConnectError,
    RemotingTimeoutError,
    RouteNotFoundError,
)
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import parse_properties
from tests.client.peer import Peer, Reply, route_of, stored
from tests.client.sending.test_producer import SEND, World, brokers, counts, header_of, world

__all__ = ["brokers", "world"]


async def test_a_timer_message_has_its_delay_or_time_as_a_property(world: World, brokers: list[Peer]) -> None:
    """The broker applies the delay."""
    brokers[0].version = 413
    await world.producer.send(OutgoingMessage("S", b"", delay_ms=1500))
    assert parse_properties(header_of(brokers[0]).properties or "")["TIMER_DELAY_MS"] == "1500"
    await world.producer.send(OutgoingMessage("S", b"", deliver_at_ms=1234))
    assert parse_properties(header_of(brokers[0]).properties or "")["TIMER_DELIVER_MS"] == "1234"
    assert len(brokers[0].got(RequestCode.HEART_BEAT)) == 1  # the version is requested once


async def test_a_timer_message_is_not_sent_to_a_broker_without_timers(world: World, brokers: list[Peer]) -> None:
    """A broker of 4.9 would deliver it at once."""
    brokers[0].version = 409
    with pytest.raises(BrokerTooOldError, match=r"b0 .* is older than RocketMQ 5\.0 \(version number 409\)"):
        await world.producer.send(OutgoingMessage("S", b"", delay_ms=1500))
    assert brokers[0].got(SEND) == []
    await world.producer.send(OutgoingMessage("S", b"", delay_level=3))
    assert len(brokers[0].got(SEND)) == 1


@pytest.mark.parametrize(
    ("key", "index"), [("TagA", 2598919 % 6), ("", 0), ("polygenelubricants", 2**31 % 6), ("order-3", 1207111308 % 6)]
)
async def test_a_sharding_key_selects_the_same_queue_as_in_java(world: World, key: str, index: int) -> None:
    """`SelectMessageQueueByHash`, with a negative hash and with the hash whose absolute value exceeds an int."""
    queues = [MessageQueue("T", f"b{broker}", queue_id) for broker in range(3) for queue_id in range(2)]
    results = [await world.producer.send(OutgoingMessage("T", b""), selector=select_by_hash(key)) for _ in range(3)]
    assert [result.queue for result in results] == [queues[index]] * 3


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (select_by_id(1), "several brokers have queue 1 of T; expected one of b0:1, b1:1, b2:1"),
        (select_by_id(2), "T has no writable queue 2; expected one of b0:0 to b0:1, b1:0 to b1:1, b2:0 to b2:1"),
        (select_by_id(0, "b3"), "T has no writable queue b3:0"),
    ],
)
async def test_a_missing_or_ambiguous_queue_is_refused(world: World, selector: MessageQueueSelector, said: str) -> None:
    with pytest.raises(RouteNotFoundError, match=said):
        await world.producer.send(OutgoingMessage("T", b""), selector=selector)


async def test_a_single_broker_gets_all_attempts(world: World, brokers: list[Peer]) -> None:
    """The broker may accept the message a moment later."""
    refusals = [Reply(ResponseCode.SYSTEM_BUSY, "busy")] * 2
    brokers[0].on(SEND, lambda _: refusals.pop() if refusals else stored())
    await world.producer.send(OutgoingMessage("S", b""))
    assert counts(brokers) == [3, 0, 0]


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_a_slow_disk_or_slave_is_not_a_failure(world: World, brokers: list[Peer], code: int) -> None:
    """The message is stored, so another send would duplicate it."""
    brokers[0].on(SEND, stored(code=ResponseCode(code)))
    assert (await world.producer.send(OutgoingMessage("S", b""))).status == code
    assert counts(brokers) == [1, 0, 0]


async def test_a_missing_route_times_out(world: World) -> None:
    """The timeout includes the route query."""

    async def never(topic: str) -> TopicRouteData:
        await asyncio.Event().wait()
        raise AssertionError

    producer = Producer(world.remoting, RouteTable(never, world.clock), clock=world.clock)
    with pytest.raises(RemotingTimeoutError, match="no route to T"):
        await producer.send(OutgoingMessage("T", b""), timeout_seconds=2)


async def test_a_missing_topic_without_automatic_creation_is_an_error(world: World) -> None:
    with pytest.raises(RouteNotFoundError, match="topic new does not exist, and the brokers do not create topics"):
        await world.producer.send(OutgoingMessage("new", b""))


async def test_a_topic_without_write_permission_is_an_error(world: World, brokers: list[Peer]) -> None:
    world.known["R"] = route_of({"b0": brokers[0].address}, perm=4)
    with pytest.raises(RouteNotFoundError, match="no writable queue"):
        await world.producer.send(OutgoingMessage("R", b""))


async def test_messages_use_the_vip_channel_if_enabled(world: World) -> None:
    """Its port is the broker's port minus 2."""
    async with Peer() as fast:
        fast.on(SEND, stored())
        world.known["V"] = route_of({"v": f"127.0.0.1:{fast.port + 2}"})
        producer = Producer(world.remoting, world.routes, clock=world.clock, vip_channel_enabled=True)
        await producer.send(OutgoingMessage("V", b""))
        assert len(fast.got(SEND)) == 1
    with pytest.raises(RemotingConnectError):
        await producer.send(OutgoingMessage("V", b""))


async def test_the_handle_of_a_timer_message_is_in_the_result(world: World, brokers: list[Peer]) -> None:
    """A response without a handle is valid: the broker is older, or the message has no delay."""
    assert (await world.producer.send(OutgoingMessage("S", b"now"))).recall_handle is None
    brokers[0].on(SEND, Reply(ext_fields={**stored().ext_fields, "recallHandle": "HANDLE"}))
    assert (await world.producer.send(OutgoingMessage("S", b"later"))).recall_handle == "HANDLE"
