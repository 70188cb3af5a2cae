"""Sends to the embedded broker: stored messages, responses and errors. Codes and remarks are 5.5.0's."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.wire.bodies.config_bodies import TopicConfig
from rmqd.wire.command import RemotingCommand
from rmqd.wire.messages.encode import BatchMember, encode_batch
from rmqd.wire.messages.message_id import parse_offset_message_id
from tests.broker.peer import Peer
from tests.broker.records import BORN_TIMESTAMP, letters, records

SEND, SEND_V2, BATCH = 10, 310, 320
PUT_BY_BROKER = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
ALWAYS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length limit 4194304B, "
    "msg properties length limit 32KB."
)


def address(embedded: EmbeddedRocketMQ) -> str:
    """Return the address of the only client, as the broker sees it."""
    (channel,) = embedded.servers[0].channels
    return channel.address


def refused(reply: RemotingCommand) -> tuple[int, str | None]:
    """Return code and remark of a refusal, whose ext fields must be the same as in every response to a send."""
    assert reply.ext_fields == ALWAYS
    return reply.code, reply.remark


async def test_a_message_is_stored_as_sent_and_the_response_has_its_offset(
    embedded: EmbeddedRocketMQ, peer: Peer
) -> None:
    sent = {"UNIQ_KEY": "U1", "TAGS": "a", "KEYS": "k1 k2", "WAIT": "true", "own": "é"}

    reply = await peer.call(SEND_V2, letters(properties=sent, e=3), b"body")

    (stored,) = records(embedded.broker.store, "T", 3)
    assert (stored.body, stored.flag, stored.sys_flag, stored.reconsume_times) == (b"body", 5, 0, 0)
    assert (stored.born_timestamp, stored.born_host) == (BORN_TIMESTAMP, address(embedded))
    assert stored.properties == sent | PUT_BY_BROKER
    assert (reply.code, reply.remark) == (0, None)
    assert parse_offset_message_id(reply.ext_fields["msgId"]).address == embedded.broker.address
    assert reply.ext_fields == ALWAYS | {
        "msgId": reply.ext_fields["msgId"],
        "queueId": "3",
        "queueOffset": "0",
        "transactionId": "U1",
    }


async def test_a_message_without_a_unique_key_gets_one(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    """Also a message without any properties."""
    replies = [await peer.call(SEND_V2, letters(i=text), b"1") for text in (None, "", "UNIQ_KEY\x01\x02")]

    keys = [message.properties["UNIQ_KEY"] for message in records(embedded.broker.store, "T")]
    assert keys == [reply.ext_fields["transactionId"] for reply in replies]
    assert len(set(keys)) == 3
    assert {len(key) for key in keys} == {32}


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        pytest.param(2, 2, id="as many as the producer wants"),
        pytest.param(100, 8, id="no more than the pattern has"),
    ],
)
async def test_a_send_creates_a_missing_topic(embedded: EmbeddedRocketMQ, peer: Peer, asked: int, made: int) -> None:
    await peer.call(SEND_V2, letters("New", d=asked, k="true"), b"1")

    assert embedded.broker.topics.get("New") == TopicConfig(
        topic_name="New", read_queue_nums=made, write_queue_nums=made, perm=6, topic_sys_flag=1
    )


# --- batches

MEMBERS = [BatchMember(b"1", {"A": "1", "UNIQ_KEY": "U9"}, 3), BatchMember(b"22", {"TAGS": "t"}), BatchMember(b"3")]


@pytest.mark.parametrize("code", [BATCH, SEND_V2])
async def test_a_batch_is_stored_message_by_message(embedded: EmbeddedRocketMQ, peer: Peer, code: int) -> None:
    """Without the properties that the broker adds to single messages. A field marks a batch, not the code."""
    await peer.call(SEND_V2, letters(), b"0")

    reply = await peer.call(code, letters(properties={"UNIQ_KEY": "B"}, m="true"), encode_batch(MEMBERS))

    _, *stored = records(embedded.broker.store, "T")
    assert [BatchMember(one.body, one.properties, one.flag) for one in stored] == MEMBERS
    assert {one.born_timestamp for one in stored} == {BORN_TIMESTAMP}
    ids = [parse_offset_message_id(one).commit_log_offset for one in reply.ext_fields["msgId"].split(",")]
    assert ids == [one.commit_log_offset for one in stored]
    assert reply.ext_fields == ALWAYS | {
        "msgId": reply.ext_fields["msgId"],
        "queueId": "0",
        "queueOffset": "1",
        "transactionId": "B",
    }


@pytest.mark.parametrize(
    "body", [b"garbage", encode_batch(MEMBERS)[:-1], encode_batch([BatchMember(b"y" * 3_000_000)] * 2)]
)
async def test_a_batch_is_stored_whole_or_not_at_all(embedded: EmbeddedRocketMQ, peer: Peer, body: bytes) -> None:
    assert (await peer.call(BATCH, letters(m="true"), body)).code == 1
    assert embedded.broker.store.end == 0


# --- retries that consumers send as new messages


async def test_a_retry_within_its_limit_is_stored(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await peer.call(SEND_V2, letters("%RETRY%g", j=3, l=3), b"1")

    (stored,) = records(embedded.broker.store, "%RETRY%g")
    assert stored.reconsume_times == 3


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"j": 4, "l": 3}, id="by the request"),
        pytest.param({"j": 17}, id="by the group"),
    ],
)
async def test_a_retry_beyond_its_limit_is_a_dead_letter(
    embedded: EmbeddedRocketMQ, peer: Peer, changed: dict[str, Any]
) -> None:
    broker = embedded.broker
    properties = {"UNIQ_KEY": "u", "DELAY": "3"}

    reply = await peer.call(SEND_V2, letters("%RETRY%g", properties, e=2, **changed), b"1")

    (stored,) = records(broker.store, "%DLQ%g")
    assert stored.properties == properties | PUT_BY_BROKER | {"DELAY": "-1"}
    assert stored.reconsume_times == changed["j"]
    assert (reply.ext_fields["queueId"], reply.ext_fields["queueOffset"]) == ("0", "0")
    assert broker.topics.get("%DLQ%g") == TopicConfig(
        topic_name="%DLQ%g", read_queue_nums=1, write_queue_nums=1, perm=6
    )
