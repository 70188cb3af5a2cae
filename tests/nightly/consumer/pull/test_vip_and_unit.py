"""The addresses that a client with `vip_channel_enabled` uses, and the flags of a client with `unit_mode`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode
from rmqd.consumer.handling.send_back import SendBack
from rmqd.consumer.rebalance.queue_lock import BrokerLocks
from rmqd.wire.bodies.group_bodies import LockBatchResponseBody
from rmqd.wire.bodies.route_data import BrokerData, QueueData, TopicRouteData
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from tests.client.peer import Peer, Reply
from tests.consumer.blocks import block_of

QUEUE = MessageQueue("orders", "broker-a", 0)
BACK, SEND, LOCK = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2, RequestCode.LOCK_BATCH_MQ


@asynccontextmanager
async def client_of(peer: Peer, options: ClientOptions, *, port: int) -> AsyncIterator[ClientInstance]:
    """A client that knows a broker at this port; the peer is the name server."""
    brokers = (BrokerData("DefaultCluster", "broker-a", {0: f"127.0.0.1:{port}"}),)
    route = TopicRouteData((QueueData("broker-a", 1, 1, 6),), brokers)
    peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Reply(body=route.to_json()))
    peer.on(LOCK, Reply(body=LockBatchResponseBody(frozenset({QUEUE})).to_json()))
    peer.on(SEND, Reply(ext_fields={"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}))
    client = ClientInstance(options)
    await client.routes.lookup("orders")
    try:
        yield client
    finally:
        await client.close()


def message() -> Message:
    """A message of QUEUE."""
    return block_of([7], QUEUE).messages[0]


async def test_retries_dead_letters_and_locks_go_to_the_vip_channel() -> None:
    """Its port is two below the broker's port, which is closed here."""
    async with Peer() as vip:
        options = ClientOptions(nameservers=(vip.address,), vip_channel_enabled=True)
        async with client_of(vip, options, port=vip.port + 2) as client:
            retry_policy = SendBack(client, "mailer", 16)
            assert await retry_policy.retry(message(), 0)
            assert await retry_policy.dead_letter(message(), "as told", None)
            assert await BrokerLocks(client, "mailer").lock("broker-a", [QUEUE]) == frozenset({QUEUE})
        assert [len(vip.got(code)) for code in (BACK, SEND, LOCK)] == [1, 1, 1]


async def test_retries_and_dead_letters_carry_the_unit_mode() -> None:
    for unit_mode in (False, True):
        async with Peer() as broker:
            options = ClientOptions(nameservers=(broker.address,), unit_mode=unit_mode)
            async with client_of(broker, options, port=broker.port) as client:
                retry_policy = SendBack(client, "mailer", 16)
                assert await retry_policy.retry(message(), 0)
                assert await retry_policy.dead_letter(message(), "as told", None)
            said = [broker.got(BACK)[0].ext_fields["unitMode"], broker.got(SEND)[0].ext_fields["k"]]
            assert said == [str(unit_mode).lower()] * 2
