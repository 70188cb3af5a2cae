"""Queries of messages by key, unique key, tag and commit log offset, with the real broker's responses (12, 33)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.messages.message_id import parse_offset_message_id
from tests.broker.peer import Peer, connected
from tests.broker.stores import messages, put
from tests.clock import ManualClock

FAR_MS = 10**13
NOTHING = "can not find message, maybe time range not correct"


@dataclass(frozen=True)
class Asked:
    """A broker with six messages, stored one second apart, and a client."""

    peer: Peer
    rocketmq: EmbeddedRocketMQ
    begin_ms: int
    offsets: list[int]

    async def query(
        self, key: str, topic: str = "T", most: int = 32, begin: int = 0, end: int = FAR_MS, **fields: str
    ) -> RemotingCommand:
        fields |= {"topic": topic, "key": key, "maxNum": str(most)}
        fields |= {"beginTimestamp": str(begin), "endTimestamp": str(end)}
        return await self.peer.call(RequestCode.QUERY_MESSAGE, fields)


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    """The bodies are m0 to m5, in two queues in turn."""
    clock = ManualClock()
    options = EmbeddedOptions(topics={"T": 2, "U": 1})
    async with embedded_rocketmq(options, clock) as rocketmq, connected(rocketmq.broker.address) as peer:
        begin, offsets = int(clock.wall() * 1000), []
        for n in range(6):
            reply = await peer.send("T", b"m%d" % n, n % 2, KEYS=f"k{n} shared", UNIQ_KEY=f"AAAA{n}", TAGS="ab"[n % 2])
            offsets.append(parse_offset_message_id(reply.ext_fields["msgId"]).commit_log_offset)
            clock.turn(1)
        yield Asked(peer, rocketmq, begin, offsets)


def found(reply: RemotingCommand) -> list[str]:
    """Return the bodies of the messages in a response."""
    assert reply.code == ResponseCode.SUCCESS
    return [message.body.decode() for message in messages(reply.body)]


async def test_a_key_finds_its_messages_in_the_order_of_storage(asked: Asked) -> None:
    """In all queues. A part of a key, or several keys, find no message."""
    assert found(await asked.query("k1")) == ["m1"]
    assert found(await asked.query("shared")) == ["m0", "m1", "m2", "m3", "m4", "m5"]
    for nothing in ("k", "k1 shared", "a", "m1"):
        assert (await asked.query(nothing)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_query_returns_the_newest_messages(asked: Asked) -> None:
    """If more messages than the maximum match."""
    assert found(await asked.query("shared", most=2)) == ["m4", "m5"]


async def test_a_unique_key_finds_its_message(asked: Asked) -> None:
    """A unique key query ignores the maximum. Keys and unique keys share one index."""
    assert found(await asked.query("AAAA2")) == ["m2"]
    assert found(await asked.query("AAAA2", most=0, _UNIQUE_KEY_QUERY="true")) == ["m2"]
    assert found(await asked.query("k1", _UNIQUE_KEY_QUERY="true")) == ["m1"]


async def test_the_tag_index_finds_tags(asked: Asked) -> None:
    """In RocketMQ since 5.4."""
    assert found(await asked.query("a", indexType="T")) == ["m0", "m2", "m4"]


async def test_a_query_is_limited_to_a_range_of_store_times(asked: Asked) -> None:
    """Both ends are inclusive."""
    begin = asked.begin_ms

    assert found(await asked.query("shared", begin=begin + 1000, end=begin + 3000)) == ["m1", "m2", "m3"]
    assert (await asked.query("shared", end=begin - 1)).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    ("key", "topic", "most"), [("none", "T", 32), ("k1", "U", 32), ("k1", "no-such", 32), ("k1", "T", 0)]
)
async def test_a_query_without_a_match_is_not_found(asked: Asked, key: str, topic: str, most: int) -> None:
    """The response is the same for each reason."""
    reply = await asked.query(key, topic, most)

    assert (reply.code, reply.remark) == (ResponseCode.QUERY_NOT_FOUND, NOTHING)
    assert reply.ext_fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


async def test_a_response_has_the_last_time_and_offset_of_the_index(asked: Asked) -> None:
    """The embedded broker's index is always up to date."""
    reply = await asked.query("k1")

    assert reply.ext_fields == {
        "indexLastUpdateTimestamp": str(asked.begin_ms + 5000),
        "indexLastUpdatePhyoffset": str(asked.offsets[-1]),
    }


async def test_a_long_query_does_not_delay_other_requests(asked: Asked) -> None:
    for _ in range(10_000):
        put(asked.rocketmq.broker.store, topic="U")

    query = asked.peer.post(
        RequestCode.QUERY_MESSAGE,
        {"topic": "U", "key": "x", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(FAR_MS)},
    )
    await asked.peer.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})

    assert asked.rocketmq.open_requests == 1
    assert (await asked.peer.reply(query)).code == ResponseCode.QUERY_NOT_FOUND


async def test_an_offset_finds_the_message_that_starts_there(asked: Asked) -> None:
    reply = await asked.peer.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(asked.offsets[3])})

    assert found(reply) == ["m3"]
    assert reply.ext_fields == {}


@pytest.mark.parametrize("offset", [-1, 1, 10**12])
async def test_an_offset_without_a_message_is_an_error(asked: Asked, offset: int) -> None:
    """Inside a message, before the first and after the last one."""
    reply = await asked.peer.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})

    assert (reply.code, reply.remark) == (
        ResponseCode.SYSTEM_ERROR,
        f"can not find message by the offset, {offset}",
    )
