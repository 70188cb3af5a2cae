"""Timer messages that are taken back before their time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from rmqd.client.api.remoting_request import request
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.errors.broker_errors import IllegalOperationError
from rmqd.wire.headers.send_headers import RecallMessageRequestHeader
from rmqd.wire.lite_topic import RecallHandle
from rmqd.wire.topics import INNER_PRODUCER_GROUP
from tests.client.running import running
from tests.conformance import behaviour
from tests.rocketmq import RealCluster


@contextlib.asynccontextmanager
async def client_of(cluster: RealCluster) -> AsyncIterator[ClientInstance]:
    """A client of the cluster, which runs for the length of the block."""
    client = ClientInstance(ClientOptions(nameservers=(cluster.nameserver,)))
    async with running(client.run()):
        yield client


async def recall(client: ClientInstance, topic: str, handle: str) -> str:
    """Ask the broker that the handle names. Its answer is the message's id."""
    broker_name = RecallHandle.parse(handle).broker_name
    header = RecallMessageRequestHeader(
        topic=topic, recall_handle=handle, producer_group=INNER_PRODUCER_GROUP, bname=broker_name
    )
    await client.routes.lookup(topic)
    reply = await request(client.remoting, client.routes.master_for(topic, broker_name), header)
    return reply.ext_fields["msgId"]


@behaviour(
    "sending",
    "A recall that is too late, or names another topic, is rejected",
    java="MQBrokerException with code 604 and the broker's reason",
    rmqd="IllegalOperationError, the same code and reason",
    checked="the broker's response; a message without a delivery time has no handle",
    since="5.5",
)
async def test_a_recall_that_the_broker_refuses(rocketmq: RealCluster, topic: str, group: str) -> None:
    """The reason is in the error's text."""
    other = rocketmq.create_topic(group)
    async with client_of(rocketmq) as client:
        plain = await client.producer.send(OutgoingMessage(topic, b"at once"))
        assert plain.recall_handle is None
        timed = await client.producer.send(OutgoingMessage(topic, b"waits", delay_ms=60_000))
        assert timed.recall_handle is not None
        with pytest.raises(IllegalOperationError, match="topic not match"):
            await recall(client, other, timed.recall_handle)
        late = RecallHandle.parse(timed.recall_handle)._replace(deliver_at_ms=1_000)
        with pytest.raises(IllegalOperationError, match="timestamp invalid"):
            await recall(client, topic, str(late))
        await recall(client, topic, timed.recall_handle)
