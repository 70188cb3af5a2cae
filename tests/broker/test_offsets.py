"""Offsets of groups: queries, commits and resets, as recorded from 5.5.0."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, EmbeddedRocketMQ, embedded_rocketmq
from rmqd.codes import LanguageCode
from rmqd.wire.bodies.group_bodies import ResetOffsetBody
from rmqd.wire.command import RemotingCommand
from tests.broker.beats import beat, consumer
from tests.broker.peer import Peer, connected

PULL, QUERY, UPDATE, RESET_MEMBER, RESET, CLONE = 11, 14, 15, 220, 222, 314
QUEUES = 4


@pytest.fixture
async def rocketmq() -> AsyncIterator[EmbeddedRocketMQ]:
    """Run a broker with the topics T and T2 and the group g."""
    async with embedded_rocketmq(EmbeddedOptions(topics={"T": QUEUES, "T2": 1})) as running:
        running.broker.groups.find_or_create("g")
        yield running


@pytest.fixture
async def peer(rocketmq: EmbeddedRocketMQ) -> AsyncIterator[Peer]:
    async with connected(rocketmq.broker.address) as connection:
        for _ in range(4):
            await connection.send("T")
        yield connection


def texts(**values: object) -> dict[str, str]:
    return {key: str(value) for key, value in values.items() if value is not None}


async def query(peer: Peer, group: str = "g", topic: str = "T", queue: int = 0, **more: Any) -> RemotingCommand:
    return await peer.call(QUERY, texts(consumerGroup=group, topic=topic, queueId=queue, **more))


async def commit(peer: Peer, offset: int, group: str = "g", topic: str = "T", queue: int = 0) -> RemotingCommand:
    return await peer.call(UPDATE, texts(consumerGroup=group, topic=topic, queueId=queue, commitOffset=offset))


async def stored(peer: Peer, group: str = "g", topic: str = "T", queue: int = 0) -> int | None:
    reply = await query(peer, group, topic, queue, setZeroIfNotFound="false")
    return int(reply.ext_fields["offset"]) if reply.code == 0 else None


async def reset(peer: Peer, language: LanguageCode = LanguageCode.PYTHON, **changed: Any) -> RemotingCommand:
    fields: dict[str, Any] = {"group": "g", "topic": "T", "timestamp": 0, "isForce": "true"}
    return await peer.call(RESET, texts(**(fields | changed)), language=language)


def targets(reply: RemotingCommand) -> dict[int, int]:
    table = ResetOffsetBody.from_json(reply.body).offset_table
    assert {(queue.topic, queue.broker_name) for queue in table} == {("T", "broker-a")}
    return {queue.queue_id: offset for queue, offset in table.items()}


async def push_resets(rocketmq: EmbeddedRocketMQ, peer: Peer) -> None:
    """Push resets to members as RocketMQ 4 does. The group has offset 2 in each queue."""
    broker = rocketmq.broker
    broker.change_settings(broker.settings.changed({"useServerSideResetOffset": "false"}))
    for queue in range(QUEUES):
        await commit(peer, 2, queue=queue)


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ({}, 0, "0"),
        ({"setZeroIfNotFound": "true"}, 0, "0"),
        ({"setZeroIfNotFound": "false"}, 22, "Not found, do not set to zero, maybe this group boot first"),
        ({"queue": 3}, 22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"),
        ({"queue": 77}, 22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"),
        ({"topic": "never"}, 22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"),
    ],
    ids=str,
)
async def test_the_offset_of_a_new_group_is_0_if_the_first_message_exists(
    peer: Peer, asked: Any, code: int, said: str
) -> None:
    """With setZeroIfNotFound=false, the broker reports that the group has no offset."""
    reply = await query(peer, "new", **asked)

    assert (reply.code, reply.ext_fields.get("offset", reply.remark)) == (code, said)


async def test_any_offset_is_committed(peer: Peer) -> None:
    """Also a lower offset, one past the end, and for a queue that does not exist. An offset below 0 means none."""
    for offset in (5, 2, 1000):
        assert (await commit(peer, offset)).code == 0
        assert await stored(peer) == offset
    await commit(peer, 3, queue=99)
    assert await stored(peer, queue=99) == 3
    await commit(peer, -1, queue=1)
    assert await stored(peer, queue=1) is None


async def test_commits_are_ignored_until_a_pull_response_reports_the_reset(peer: Peer) -> None:
    """Such commits are for messages that were handled before the reset."""
    await commit(peer, 4)
    reply = await reset(peer)
    assert (reply.code, reply.remark, targets(reply)) == (0, None, {0: 0, 1: 0, 2: 0, 3: 0})

    ignored = await commit(peer, 4)
    assert (ignored.code, ignored.remark) == (0, "Offset has been previously reset")
    assert await stored(peer) == 0

    told = await pull(peer, 4)
    assert (told.code, told.remark, told.ext_fields["nextBeginOffset"]) == (21, "OFFSET_RESET", "0")
    assert await stored(peer) == 0
    assert (await commit(peer, 1)).remark is None
    assert await stored(peer) == 1


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"timestamp": -1}, {0: 4, 1: 0, 2: 0, 3: 0}),
        ({"timestamp": -5, "queueId": -1}, {0: 4, 1: 0, 2: 0, 3: 0}),
        ({"timestamp": 1 << 50}, {0: 4, 1: 0, 2: 0, 3: 0}),
        ({"queueId": 0, "timestamp": -1}, {0: 4}),
        ({"queueId": 0, "offset": 2}, {0: 2}),
        ({"queueId": 0, "offset": 5}, {0: 5}),
        ({"queueId": 0, "offset": -1}, {0: 0}),
        ({"queueId": 99}, {99: 0}),
    ],
    ids=str,
)
async def test_reset_to_a_time_or_an_offset(peer: Peer, asked: dict[str, int], expected: dict[int, int]) -> None:
    assert targets(await reset(peer, LanguageCode.PYTHON, **asked)) == expected
    assert {queue: await stored(peer, queue=queue) for queue in expected} == expected


async def test_reset_is_pushed_to_members(rocketmq: EmbeddedRocketMQ, peer: Peer) -> None:
    """For all queues, even if one is requested. The broker does not change its offsets, because the members commit."""
    await push_resets(rocketmq, peer)
    async with connected(rocketmq.broker.address) as member:
        await beat(member, "one", consumer())
        reply = await reset(peer, timestamp=-1, queueId=1, offset=1)
        push = await member.request(RESET_MEMBER)

    expected = {0: 4, 1: 0, 2: 0, 3: 0}
    assert (reply.code, reply.remark, targets(reply)) == (0, "not set any response code", expected)
    assert push.is_oneway
    assert push.ext_fields == texts(group="g", topic="T", timestamp=-1, isForce="false", queueId=-1)
    assert targets(push) == expected
    assert await stored(peer) == 2


async def pull(peer: Peer, offset: int) -> RemotingCommand:
    await beat(peer, "one", consumer())
    fields = texts(
        consumerGroup="g",
        topic="T",
        queueId=0,
        queueOffset=offset,
        maxMsgNums=1,
        sysFlag=4,
        commitOffset=0,
        suspendTimeoutMillis=0,
        subscription="*",
        subVersion=0,
        expressionType="TAG",
    )
    return await peer.call(PULL, fields)


async def test_offsets_and_resets_are_kept_after_a_restart(tmp_path: Path) -> None:
    """Deleted offsets stay deleted."""
    options = EmbeddedOptions(topics={"T": QUEUES}, data_dir=tmp_path)
    async with embedded_rocketmq(options) as rocketmq, connected(rocketmq.broker.address) as peer:
        for group in ("g", "other", "left"):
            await peer.call(352, {"group": group})
            await commit(peer, 2, group)
        await commit(peer, 3)
        await reset(peer, LanguageCode.PYTHON, group="other")
        await peer.call(207, {"groupName": "left", "cleanOffset": "true"})
    async with embedded_rocketmq(options) as rocketmq, connected(rocketmq.broker.address) as peer:
        assert (await stored(peer), await stored(peer, "other"), await stored(peer, "left")) == (3, 0, None)
        assert (await commit(peer, 2, "other")).remark == "Offset has been previously reset"
