"""Operators' requests to members through the broker, with bare clients and with rmqd's own consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.broker.peer_channel import Refusal
from rmqd.broker.processors import stats_processor
from rmqd.codes import ResponseCode
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.bodies.group_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo, GetConsumerStatusBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.broker.beats import beat, consumer
from tests.broker.peer import Peer, connected
from tests.consumer.members import member
from tests.seen import Seen
from tests.waiting import eventually

STATUS_OF_MEMBER, STATUS, RUNNING_INFO, DIRECTLY = 221, 223, 307, 309
Q0 = MessageQueue("T", "broker-a", 0)


@pytest.fixture
async def rocketmq() -> AsyncIterator[EmbeddedRocketMQ]:
    async with embedded_rocketmq(EmbeddedOptions(topics={"T": 1})) as running:
        yield running


@pytest.fixture
async def peer(rocketmq: EmbeddedRocketMQ) -> AsyncIterator[Peer]:
    async with connected(rocketmq.broker.address) as connection:
        yield connection


@pytest.fixture
async def one(rocketmq: EmbeddedRocketMQ) -> AsyncIterator[Peer]:
    """A member of g."""
    async with connected(rocketmq.broker.address) as connection:
        await beat(connection, "one", consumer())
        yield connection


def refusal(reply: RemotingCommand) -> tuple[int, str | None]:
    return reply.code, reply.remark


def about(client_id: str = "one", **fields: str) -> dict[str, str]:
    return {"consumerGroup": "g", "clientId": client_id} | fields


async def test_all_members_report_their_offsets(rocketmq: EmbeddedRocketMQ, peer: Peer, one: Peer) -> None:
    """The broker asks all at once. A member that returns an error is left out."""
    async with connected(rocketmq.broker.address) as other:
        await beat(other, "other", consumer())
        asked = peer.post(STATUS, {"topic": "T", "group": "g"})
        question = await one.request(STATUS_OF_MEMBER)
        assert question.ext_fields == {"topic": "T", "group": "g"}
        one.answer(question, body=GetConsumerStatusBody({Q0: 5}).to_json())
        other.answer(await other.request(STATUS_OF_MEMBER), 1, "not here")
        reply = await peer.reply(asked)

    assert refusal(reply) == (0, "not set any response code")
    assert GetConsumerStatusBody.from_json(reply.body).consumer_table == {"one": {Q0: 5}}


async def test_one_member_reports_its_offsets(rocketmq: EmbeddedRocketMQ, peer: Peer, one: Peer) -> None:
    """Selected by client id, which the request calls an address. The result is empty for an unknown id."""
    async with connected(rocketmq.broker.address) as other:
        await beat(other, "other", consumer())
        asked = peer.post(STATUS, {"topic": "T", "group": "g", "clientAddr": "other"})
        other.answer(await other.request(STATUS_OF_MEMBER), body=GetConsumerStatusBody({Q0: 7}).to_json())
        reply = await peer.reply(asked)
        nobody = await peer.call(STATUS, {"topic": "T", "group": "g", "clientAddr": "nobody"})

    assert GetConsumerStatusBody.from_json(reply.body).consumer_table == {"other": {Q0: 7}}
    assert nobody.body == b'{"consumerTable":{},"messageQueueTable":{}}'


async def test_a_member_that_disconnects_or_sends_invalid_json_is_left_out(
    rocketmq: EmbeddedRocketMQ, peer: Peer, one: Peer
) -> None:
    async with connected(rocketmq.broker.address) as other:
        await beat(other, "other", consumer())
        asked = peer.post(STATUS, {"topic": "T", "group": "g"})
        one.answer(await one.request(STATUS_OF_MEMBER), body=b"{")
        await other.request(STATUS_OF_MEMBER)
        await other.close()
        reply = await peer.reply(asked)

    assert reply.code == 0
    assert GetConsumerStatusBody.from_json(reply.body).consumer_table == {}


async def test_request_and_response_are_forwarded_unchanged(peer: Peer, one: Peer) -> None:
    asked = peer.post(RUNNING_INFO, about(jstackEnable="false", extra="x"))
    question = await one.request(RUNNING_INFO)
    assert question.ext_fields == about(jstackEnable="false", extra="x")
    one.answer(question, 7, "odd", b"body")

    reply = await peer.reply(asked)

    assert (*refusal(reply), reply.body) == (7, "odd", b"body")


async def test_a_message_is_sent_to_a_member_directly(rocketmq: EmbeddedRocketMQ, peer: Peer, one: Peer) -> None:
    """The stored record of the offset id, with the broker's settings of topic and group."""
    rocketmq.broker.groups.put(SubscriptionGroupConfig(group_name="g", group_sys_flag=5))
    sent = await peer.send("T", b"direct")
    message_id = sent.ext_fields["msgId"]
    asked = peer.post(DIRECTLY, about(msgId=message_id, topic="T"))
    question = await one.request(DIRECTLY)
    one.answer(question, body=b"done")

    assert (await peer.reply(asked)).body == b"done"
    given = {"brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "5"}
    assert question.ext_fields == about(msgId=message_id, topic="T", **given)
    assert b"direct" in question.body
    assert question.body == rocketmq.broker.store.record(0)


@pytest.mark.parametrize("message_id", ["zz", "7F00000100002A9F00000000FFFFFFFF"], ids=["no id", "no message"])
async def test_an_unknown_message_id_is_an_error(peer: Peer, one: Peer, message_id: str) -> None:
    assert (await peer.call(DIRECTLY, about(msgId=message_id))).code == 1


async def test_an_unknown_member_is_an_error(peer: Peer, one: Peer) -> None:
    assert refusal(await peer.call(RUNNING_INFO, about("two"))) == (1, "The Consumer <g> <two> not online")
    nobody = await peer.call(STATUS, {"topic": "T", "group": "never"})
    assert refusal(nobody) == (1, "No Any Consumer online in the consumer group: [never]")


async def test_a_member_that_disconnects_during_the_request_is_an_error(peer: Peer, one: Peer) -> None:
    """The response is sent at once. RocketMQ waits for the timeout."""
    asked = peer.post(RUNNING_INFO, about())
    await one.request(RUNNING_INFO)
    await one.close()

    code, remark = refusal(await peer.reply(asked))

    assert code == 207
    assert (remark or "").startswith("consumer <g> <one> Timeout: ")


async def test_a_member_that_does_not_respond_is_an_error(
    rocketmq: EmbeddedRocketMQ, one: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only for running info. The query of offsets leaves the member out."""
    monkeypatch.setattr(stats_processor, "STATUS_SECONDS", 0.01)
    monkeypatch.setattr(stats_processor, "CALL_SECONDS", 0.01)
    processor = stats_processor.StatsProcessor(rocketmq.broker)
    client = rocketmq.broker.consumers.find_client("g", "one")
    assert client is not None
    with pytest.raises(Refusal) as error:
        await processor.running_info(client.channel, RemotingCommand(RUNNING_INFO, 1, 0, about()))
    status = await processor.consumer_status(
        client.channel, RemotingCommand(STATUS, 1, 0, {"topic": "T", "group": "g"})
    )

    assert error.value.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert error.value.remark.startswith("consumer <g> <one> Timeout: ")
    assert GetConsumerStatusBody.from_json(status.body).consumer_table == {}


async def test_a_slow_member_does_not_delay_other_requests(peer: Peer, one: Peer) -> None:
    """Even if the requesting client is the same member."""
    asked = one.post(RUNNING_INFO, about())
    question = await one.request(RUNNING_INFO)
    assert (await peer.call(STATUS, {"topic": "T", "group": "never"})).code == 1
    one.answer(question, body=b"late")

    assert (await one.reply(asked)).body == b"late"


async def test_the_rmqd_consumer_responds_to_operators(rocketmq: EmbeddedRocketMQ, peer: Peer) -> None:
    """Running info, current offsets, and a message handled directly."""
    handler = Seen()
    async with member(rocketmq.nameserver, handler, group="g", subscriptions=["T"]) as m:
        sent = await peer.send("T", KEYS="k")
        await eventually(lambda: handler.keys == ["k"], "the message is handled")
        client_id = m.client.client_id
        info = await peer.call(RUNNING_INFO, about(client_id, jstackEnable="false"))
        held = await peer.call(STATUS, {"topic": "T", "group": "g"})
        done = await peer.call(DIRECTLY, about(client_id, msgId=sent.ext_fields["msgId"], topic="T"))
        await asyncio.wait_for(m.stop(), 25)

    assert {queue.topic for queue in ConsumerRunningInfo.from_json(info.body).mq_table} == {"T", "%RETRY%g"}
    assert GetConsumerStatusBody.from_json(held.body).consumer_table == {client_id: {Q0: 1}}
    assert ConsumeMessageDirectlyResult.from_json(done.body).consume_result == "CR_SUCCESS"
    assert handler.keys == ["k", "k"]
