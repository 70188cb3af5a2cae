"""Recall of timer messages in the embedded broker, as in 5.5.0 (request 370)."""

from __future__ import annotations

import base64
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.broker.schedule import ScheduleMessageService
from rmqd.codes import ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.lite_topic import RecallHandle
from rmqd.wire.messages.encode import StoredMessage
from tests.broker.peer import Peer
from tests.broker.stores import bodies, in_folder
from tests.clock import ManualClock

RECALL = 370
NOW_MS = 1_700_000_000_300
DUE_MS = 1_700_000_005_001
"""The time in the handle of a message with 5 s."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS / 1000)


@pytest.fixture
def embedded(embedded: EmbeddedRocketMQ) -> EmbeddedRocketMQ:
    """A broker with recallMessageEnable."""
    change(embedded, recallMessageEnable=True)
    return embedded


def change(embedded: EmbeddedRocketMQ, **settings: Any) -> None:
    """Change settings of the broker."""
    embedded.broker.change_settings(replace(embedded.broker.settings, **settings))


async def send(peer: Peer, body: str, seconds: int = 5, **properties: str) -> RemotingCommand:
    """A timer message whose unique key is its body."""
    return await peer.send("T", body.encode(), 0, TIMER_DELAY_SEC=str(seconds), **({"UNIQ_KEY": body} | properties))


async def recall(peer: Peer, handle: str, topic: str = "T") -> RemotingCommand:
    """Recall a message (request 370)."""
    return await peer.call(RECALL, {"topic": topic, "recallHandle": handle, "producerGroup": "p"})


def come(embedded: EmbeddedRocketMQ, clock: ManualClock, topic: str = "T") -> list[str]:
    """Return the messages that are delivered within ten seconds."""
    clock.turn(10)
    embedded.broker.schedule.wake()
    return bodies(embedded.broker.store, topic)


async def test_a_recalled_message_is_not_delivered(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    await send(peer, "a")
    sent = await send(peer, "b")
    await send(peer, "c", seconds=6)

    reply = await recall(peer, sent.ext_fields["recallHandle"])

    assert (reply.code, reply.remark) == (0, "not set any response code")
    assert reply.ext_fields == {"msgId": "b", "MSG_REGION": "DefaultRegion"}
    assert come(embedded, clock) == ["a", "c"]
    assert embedded.broker.schedule.next_due() is None


async def test_a_recall_only_affects_its_second(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    """Two messages may have the same unique key."""
    sent = await send(peer, "a")
    await send(peer, "later", seconds=7, UNIQ_KEY="a")

    await recall(peer, sent.ext_fields["recallHandle"])

    assert come(embedded, clock) == ["later"]
    await send(peer, "again", UNIQ_KEY="a")
    assert come(embedded, clock) == ["later", "again"]


async def test_a_producer_can_send_the_recall_as_a_message(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    await send(peer, "a")

    assert (await send(peer, "0", TIMER_DEL_UNIQKEY="a")).code == 0

    assert come(embedded, clock) == []


@pytest.mark.parametrize(("with_topic", "left"), [(False, []), (True, ["a"])])
async def test_the_topic_can_be_part_of_the_recalled_key(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock, with_topic: bool, left: list[str]
) -> None:
    change(embedded, appendTopicForTimerDeleteKey=with_topic)
    await peer.send("U")
    await send(peer, "a")

    await recall(peer, str(RecallHandle("U", embedded.broker.name, DUE_MS, "a")), "U")

    assert come(embedded, clock) == left


async def test_recall_is_off_by_default(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    change(embedded, recallMessageEnable=BrokerSettings().recallMessageEnable)
    sent = await send(peer, "a")

    reply = await recall(peer, sent.ext_fields["recallHandle"])

    assert (reply.code, reply.remark) == (ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    assert reply.ext_fields == {"MSG_REGION": "DefaultRegion"}
    assert come(embedded, clock) == ["a"]


BAD = [
    ("T", "", "recall handle is invalid"),
    ("T", "%%%", "recall handle is invalid"),
    ("T", base64.urlsafe_b64encode(b"v1 T broker-a 5").decode(), "recall handle is invalid"),
    ("T", base64.urlsafe_b64encode(b"v2 T broker-a 5 a").decode(), "recall handle is invalid"),
    ("T", str(RecallHandle("U", "broker-a", DUE_MS, "a")), "recall failed, topic not match"),
    ("T", str(RecallHandle("T", "broker-b", DUE_MS, "a")), "recall failed, broker service not available"),
    ("T", str(RecallHandle("T", "broker-a", NOW_MS, "a")), "recall failed, timestamp invalid"),
    ("T", str(RecallHandle("T", "broker-a", NOW_MS + 3 * 24 * 3600 * 1000, "a")), "recall failed, timestamp invalid"),
]


@pytest.mark.parametrize(("topic", "handle", "remark"), BAD)
async def test_invalid_handles_are_rejected(
    embedded: EmbeddedRocketMQ, peer: Peer, topic: str, handle: str, remark: str
) -> None:
    reply = await recall(peer, handle, topic)

    assert (reply.code, reply.remark) == (ResponseCode.ILLEGAL_OPERATION, remark)
    assert embedded.broker.store.end == 0


async def test_a_recall_from_a_missing_topic_is_rejected(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    reply = await recall(peer, "x", "none")

    assert (reply.code, reply.remark) == (ResponseCode.TOPIC_NOT_EXIST, "recall failed, the topic[none] not exist")


async def test_a_recall_survives_a_crash(tmp_path: Path, clock: ManualClock) -> None:
    store, data_dir = in_folder(tmp_path / "data", clock=clock)
    with closing(data_dir):
        schedule = ScheduleMessageService(store, BrokerSettings(), clock, data_dir)
        for body, properties in (("a", {"UNIQ_KEY": "a"}), ("b", {"UNIQ_KEY": "b"}), ("0", {"TIMER_DEL_UNIQKEY": "a"})):
            schedule.put(
                StoredMessage(topic="T", body=body.encode(), properties={"TIMER_DELAY_SEC": "5", **properties})
            )

    store, data_dir = in_folder(tmp_path / "data", clock=clock)
    with closing(data_dir):
        schedule = ScheduleMessageService(store, BrokerSettings(), clock, data_dir)
        clock.turn(10)
        schedule.wake()

        assert bodies(store, "T") == ["b"]
