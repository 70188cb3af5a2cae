"""Producer: requests, the choice of brokers, and failed sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.route_table import RouteTable
from rmqd.client.sending.outgoing_message import OutgoingMessage, select_by_id
from rmqd.client.sending.producer import Producer
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import (
    InvalidMessageError,
    RemotingTimeoutError,
)
from rmqd.errors.broker_errors import (
    BrokerError,
    MessageIllegalError,
    NoPermissionError,
    TopicNotExistError,
)
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.headers.send_headers import SendBatchMessageRequestHeader, SendMessageRequestHeaderV2
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import decode_batch
from rmqd.wire.messages.properties import parse_properties
from tests.client.peer import Peer, Reply, route_of, stored
from tests.clock import ManualClock
from tests.waiting import eventually

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


class World:
    """A producer and its routes."""

    def __init__(self, clock: ManualClock) -> None:
        self.known: dict[str, TopicRouteData] = {}
        self.clock = clock
        self.remoting = RemotingClient(clock=clock)
        self.routes = RouteTable(self._route_of, clock)
        self.producer = Producer(self.remoting, self.routes, clock=clock)

    async def _route_of(self, topic: str) -> TopicRouteData:
        if topic not in self.known:
            raise TopicNotExistError(ResponseCode.TOPIC_NOT_EXIST, "unknown", "a name server")
        return self.known[topic]


@pytest.fixture
async def brokers() -> AsyncIterator[list[Peer]]:
    """Three brokers that store every message."""
    peers = [Peer() for _ in range(3)]
    for peer in peers:
        peer.on(SEND, lambda command: stored(queue_id=int(command.ext_fields["e"])))
        await peer.listen()
    yield peers
    for peer in peers:
        await peer.down()


@pytest.fixture
async def world(brokers: list[Peer], flowing: ManualClock) -> AsyncIterator[World]:
    """Topic T has 2 queues on each broker, topic S on the first alone."""
    world = World(flowing)
    world.known["T"] = route_of({f"b{index}": peer.address for index, peer in enumerate(brokers)}, queues=2)
    world.known["S"] = route_of({"b0": brokers[0].address}, queues=2)
    yield world
    await world.remoting.close()


def header_of(peer: Peer) -> SendMessageRequestHeaderV2:
    """The header of the last message that a broker got."""
    return SendMessageRequestHeaderV2.from_ext_fields(peer.got(SEND)[-1].ext_fields)


def counts(brokers: list[Peer]) -> list[int]:
    """The number of messages that each broker got."""
    return [len(peer.got(SEND)) for peer in brokers]


async def test_a_send_request_has_all_fields_of_the_message(world: World, brokers: list[Peer]) -> None:
    """Tags, keys, delay level and properties are in the request. The result has the queue and the offset."""
    before_ms = int(world.clock.wall() * 1000)
    message = OutgoingMessage("S", b"body", "paid", "k1 k2", 3, properties={"colour": "red"}, flag=5)
    result = await world.producer.send(message)
    header = header_of(brokers[0])
    properties = parse_properties(header.properties or "")
    assert brokers[0].got(SEND)[-1].body == b"body"
    assert properties.pop("UNIQ_KEY") == result.msg_id
    assert properties == {"TAGS": "paid", "KEYS": "k1 k2", "DELAY": "3", "colour": "red", "WAIT": "true"}
    assert (header.topic, header.flag, header.sys_flag, header.broker_name) == ("S", 5, 0, "b0")
    assert before_ms <= header.born_timestamp <= int(world.clock.wall() * 1000)
    assert result.queue == MessageQueue("S", "b0", header.queue_id)
    assert (result.queue_offset, result.status) == (7, ResponseCode.SUCCESS)
    assert len(result.offset_msg_id) == 32


async def test_a_message_that_is_sent_again_keeps_its_system_values(world: World, brokers: list[Peer]) -> None:
    """A retry keeps its unique key, compression flag and born timestamp."""
    message = OutgoingMessage(
        "S",
        b"zipped",
        properties={"UNIQ_KEY": "ABC", "RETRY_TOPIC": "T"},
        sys_flag=0x301,
        born_timestamp_ms=1234,
    )
    assert (await world.producer.send(message)).msg_id == "ABC"
    header = header_of(brokers[0])
    assert (header.sys_flag, header.born_timestamp) == (0x301, 1234)
    assert parse_properties(header.properties or "")["RETRY_TOPIC"] == "T"


async def test_a_send_to_a_selected_queue_is_retried_at_that_queue_only(world: World, brokers: list[Peer]) -> None:
    brokers[1].on(SEND, Reply(ResponseCode.SYSTEM_BUSY))
    with pytest.raises(BrokerError):
        await world.producer.send(OutgoingMessage("T", b""), selector=select_by_id(1, "b1"))
    assert counts(brokers) == [0, 3, 0]


async def test_queues_take_turns(world: World, brokers: list[Peer]) -> None:
    """Twelve messages over six queues: two for each queue."""
    results = [await world.producer.send(OutgoingMessage("T", b"")) for _ in range(12)]
    queues = [result.queue for result in results]
    assert sorted(queues) == sorted([MessageQueue("T", f"b{b}", q) for b in range(3) for q in range(2)] * 2)
    assert counts(brokers) == [4, 4, 4]
    assert len({result.msg_id for result in results}) == 12


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
async def test_a_temporary_refusal_is_retried_at_another_broker(world: World, brokers: list[Peer], code: int) -> None:
    """These are the codes that Java retries."""
    for refusing in brokers:
        brokers_left = [peer for peer in brokers if peer is not refusing]
        refusing.on(SEND, Reply(code, "refused"))
        for _ in range(6):
            result = await world.producer.send(OutgoingMessage("T", b""))
            assert world.routes.master(result.queue.broker_name) in [peer.address for peer in brokers_left]
        refusing.on(SEND, stored())


async def test_a_permanent_refusal_is_raised_at_once(world: World, brokers: list[Peer]) -> None:
    """A message that is too long is too long for every broker."""
    for peer in brokers:
        peer.on(SEND, Reply(ResponseCode.MESSAGE_ILLEGAL, "the message body size over max value"))
    with pytest.raises(MessageIllegalError, match="over max"):
        await world.producer.send(OutgoingMessage("T", b""))
    assert sum(counts(brokers)) == 1


async def test_a_batch_is_one_request_to_one_queue(world: World, brokers: list[Peer]) -> None:
    """Each message keeps its properties, body and flag. The receipt has the queue and the first offset."""
    for peer in brokers:
        peer.on(BATCH, Reply(ext_fields={"msgId": "A,B", "queueId": "1", "queueOffset": "7"}))
    messages = [
        OutgoingMessage("T", b"first", "paid", "k1", properties={"UNIQ_KEY": "ABC"}, flag=5),
        OutgoingMessage("T", b"second", properties={"colour": "red"}),
    ]
    receipt = await world.producer.send_batch(messages, selector=select_by_id(1, "b2"))
    assert [len(peer.got(BATCH)) for peer in brokers] == [0, 0, 1]
    [request] = brokers[2].got(BATCH)
    header = SendBatchMessageRequestHeader.from_ext_fields(request.ext_fields)
    assert (header.topic, header.queue_id, header.batch, header.broker_name) == ("T", 1, True, "b2")
    first, second = decode_batch(request.body)
    assert (first.body, first.flag, second.body, second.flag) == (b"first", 5, b"second", 0)
    assert (first.properties["UNIQ_KEY"], first.properties["TAGS"], first.properties["KEYS"]) == ("ABC", "paid", "k1")
    assert (second.properties["colour"], len(second.properties["UNIQ_KEY"])) == ("red", 32)
    assert (receipt.offset_msg_id, receipt.queue.queue_id, receipt.queue_offset) == ("A,B", 1, 7)


async def test_a_batch_is_retried_as_a_whole_at_another_broker(world: World, brokers: list[Peer]) -> None:
    """A temporary refusal is retried; a permanent one is raised at once."""
    batch = [OutgoingMessage("T", b"first"), OutgoingMessage("T", b"second")]
    for peer in brokers:
        peer.on(BATCH, Reply(ResponseCode.SYSTEM_BUSY, "refused"))
    brokers[1].on(BATCH, Reply(ext_fields={"msgId": "A,B", "queueId": "0", "queueOffset": "7"}))
    for _ in range(3):
        await world.producer.send_batch(batch)
    assert {len(decode_batch(request.body)) for peer in brokers for request in peer.got(BATCH)} == {2}
    assert len(brokers[1].got(BATCH)) == 3
    brokers[1].on(BATCH, Reply(ResponseCode.MESSAGE_ILLEGAL, "over max"))
    with pytest.raises(MessageIllegalError, match="over max"):
        await world.producer.send_batch(batch)
    assert len(brokers[1].got(BATCH)) == 4


async def test_a_message_is_tried_at_three_brokers(world: World, brokers: list[Peer]) -> None:
    """Then the last error is raised."""
    for peer in brokers:
        peer.on(SEND, Reply(ResponseCode.NO_PERMISSION, "not writable"))
    with pytest.raises(NoPermissionError):
        await world.producer.send(OutgoingMessage("T", b""))
    assert counts(brokers) == [1, 1, 1]


async def test_an_unreachable_broker_is_skipped(world: World, brokers: list[Peer]) -> None:
    """The other brokers store every message."""
    await brokers[1].down()
    for _ in range(6):
        await world.producer.send(OutgoingMessage("T", b""))
    assert counts(brokers) == [counts(brokers)[0], 0, 6 - counts(brokers)[0]]


async def test_a_broker_that_hangs_leaves_time_for_another(world: World, brokers: list[Peer]) -> None:
    """The timeout covers all tries together, and no single try may use it up."""
    brokers[0].on(SEND, None)
    for _ in range(6):
        result = await world.producer.send(OutgoingMessage("T", b""), timeout_seconds=2.0)
        assert result.queue.broker_name != "b0"


async def test_the_timeout_covers_all_tries_together(world: World, brokers: list[Peer]) -> None:
    """Three silent brokers take no longer than one."""
    for peer in brokers:
        peer.on(SEND, None)
    started = world.clock.monotonic()
    with pytest.raises(RemotingTimeoutError):
        await world.producer.send(OutgoingMessage("T", b""), timeout_seconds=1.5)
    assert world.clock.monotonic() - started < 2 * 1.5
    assert counts(brokers) == [1, 1, 1]


async def test_a_timeout_error_names_the_time_that_the_broker_had(world: World, brokers: list[Peer]) -> None:
    """Several tries at one broker may have used up the time."""
    world.known["T"] = route_of({"b0": brokers[0].address})
    brokers[0].on(SEND, None)
    with pytest.raises(RemotingTimeoutError, match=r"within [1-9]\d\d ms"):
        await world.producer.send(OutgoingMessage("T", b""), timeout_seconds=0.25)


async def test_a_message_to_a_missing_topic_goes_to_the_default_topic(world: World, brokers: list[Peer]) -> None:
    """The broker creates the topic with at most four queues."""
    world.known["TBW102"] = route_of({"b1": brokers[1].address}, queues=8, perm=7)
    queues = {(await world.producer.send(OutgoingMessage("new", b""))).queue.queue_id for _ in range(8)}
    assert queues == {0, 1, 2, 3}
    assert header_of(brokers[1]).default_topic == "TBW102"
    assert header_of(brokers[1]).default_topic_queue_nums == 4


async def test_a_property_that_cannot_be_encoded_is_refused_before_the_send(world: World, brokers: list[Peer]) -> None:
    """Its separator character would change other properties."""
    with pytest.raises(InvalidMessageError):
        await world.producer.send(OutgoingMessage("T", b"", properties={"a": "b\x02c"}))
    assert counts(brokers) == [0, 0, 0]


async def test_cancellation_ends_a_send_at_once(world: World, brokers: list[Peer]) -> None:
    """No further try is made."""
    for peer in brokers:
        peer.on(SEND, None)
    sending = asyncio.create_task(world.producer.send(OutgoingMessage("T", b"")))
    await eventually(lambda: sum(counts(brokers)), "one broker gets the message")
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert sum(counts(brokers)) == 1
