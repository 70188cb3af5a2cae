"""Timer messages that are taken back before their time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.errors.broker_errors import IllegalOperationError
from rmqd.wire.lite_topic import RecallHandle
from tests.client.running import running
from tests.conformance import behaviour
from tests.rocketmq import RealCluster


@contextlib.asynccontextmanager
async def client_of(cluster: RealCluster) -> AsyncIterator[ClientInstance]:
    """A client of the cluster, which runs for the length of the block."""
    client = ClientInstance(ClientOptions(nameservers=(cluster.nameserver,)))
    async with running(client.run()):
        yield client


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
            await client.producer.recall(other, timed.recall_handle)
        late = RecallHandle.parse(timed.recall_handle)._replace(deliver_at_ms=1_000)
        with pytest.raises(IllegalOperationError, match="timestamp invalid"):
            await client.producer.recall(topic, str(late))
        await client.producer.recall(topic, timed.recall_handle)
