"""Recalls of timer messages: Java recalls messages of rmqd, and the reverse."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

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
from tests.conformance.scripted import both
from tests.rocketmq import RealCluster
from tests.rocketmq.peers import start_program


@contextlib.asynccontextmanager
async def client_of(cluster: RealCluster) -> AsyncIterator[ClientInstance]:
    """A client of the cluster that runs during the block."""
    client = ClientInstance(ClientOptions(nameservers=(cluster.nameserver,)))
    async with running(client.run()):
        yield client


async def recall(client: ClientInstance, topic: str, handle: str) -> str:
    """Send a recall to the broker in the handle. Returns the message's id."""
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
async def test_a_recall_with_a_wrong_topic_or_time_is_refused(rocketmq: RealCluster, topic: str, group: str) -> None:
    """The error has the broker's reason."""
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


DELAY_MS = 15_000  # longer than a Java program takes to start, on a busy machine too


async def by_java(cluster: RealCluster, topic: str, directory: Path, **options: object) -> str:
    """Run Java's producer. Returns the handle of the message it sends, or the id of the message it recalls."""
    options = {"namesrv": cluster.nameserver, "topic": topic, **options}
    with await asyncio.to_thread(start_program, "Recaller", directory, options) as peer:
        return peer.client_id


@behaviour(
    "sending",
    "A message that waits for its time can be recalled with the handle that its send returned",
    java="SendResult.getRecallHandle, DefaultMQProducer.recallMessage",
    rmqd="SendResult.recall_handle; `rmqd send -o json` shows the handle",
    checked=(
        "Java recalls messages that rmqd sent, and the reverse; consumers of both receive only the "
        "messages that were not recalled"
    ),
    since="5.5",
    long=True,
)
async def test_recalled_messages_do_not_arrive(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """Each side sends two messages, and the other side recalls one of them."""
    wait = {"delay_millis": DELAY_MS}
    async with client_of(rocketmq) as client:
        sent = {}
        for key in ("rmqd-recalled", "rmqd-kept"):
            message = OutgoingMessage(topic, b"waits", keys=key, delay_ms=DELAY_MS)
            sent[key] = await client.producer.send(message)
        handles = {key: result.recall_handle for key, result in sent.items()}
        recalled = sent["rmqd-recalled"]
        assert handles["rmqd-recalled"] is not None
        handle = RecallHandle.parse(handles["rmqd-recalled"])
        assert (handle.topic, handle.broker_name, handle.msg_id) == (topic, "broker-a", recalled.msg_id)
        assert str(handle) == handles["rmqd-recalled"]
        assert await by_java(rocketmq, topic, tmp_path, handle=handles["rmqd-recalled"]) == recalled.msg_id

        java_handle = await by_java(rocketmq, topic, tmp_path, key="java-recalled", **wait)
        assert await recall(client, topic, java_handle) == RecallHandle.parse(java_handle).msg_id
        await by_java(rocketmq, topic, tmp_path, key="java-kept", **wait)

    async with both(rocketmq, group, tmp_path, [topic], consume_from_where="first_offset") as sides:
        java, rmqd = await sides.finish(topic, attempts=2, timeout_seconds=60)

    assert sorted(map(str, java.keys)) == sorted(map(str, rmqd.keys)) == ["java-kept", "rmqd-kept"]
