"""Timer messages of the embedded broker, as in 5.5.0: whole seconds, up to three days ahead."""

from __future__ import annotations

import base64
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.broker.schedule import ScheduleMessageService
from rmqd.broker.store.journal import NoJournal
from rmqd.errors import InvalidMessageError
from rmqd.wire.messages.encode import StoredMessage
from tests.broker.peer import Peer
from tests.broker.records import letters, records
from tests.broker.stores import bodies, in_folder, in_memory
from tests.clock import ManualClock

TIMER_TOPIC = "rmq_sys_wheel_timer"
NOW_MS = 1_700_000_000_300
DAY_SECONDS = 24 * 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS / 1000)


def timed(body: str = "x", **properties: Any) -> StoredMessage:
    texts = {key: str(value) for key, value in properties.items()}
    return StoredMessage(topic="T", body=body.encode(), queue_id=2, properties=texts)


TIMES = [
    # the requested time, the full second in TIMER_OUT_MS, the time of delivery
    ({"TIMER_DELAY_SEC": 1}, 1_700_000_001_000, 1_700_000_002),
    ({"TIMER_DELAY_MS": 1}, 1_700_000_000_000, 1_700_000_001),
    ({"TIMER_DELAY_MS": 1500}, 1_700_000_001_000, 1_700_000_002),
    ({"TIMER_DELIVER_MS": 1_700_000_005_000}, 1_700_000_004_000, 1_700_000_005),
    ({"TIMER_DELIVER_MS": 1_700_000_005_001}, 1_700_000_005_000, 1_700_000_006),
    ({"TIMER_DELAY_SEC": 3 * DAY_SECONDS}, 1_700_259_200_000, 1_700_259_201),
    # seconds have priority over milliseconds, and these over a point in time
    ({"TIMER_DELIVER_MS": "x", "TIMER_DELAY_MS": 9999, "TIMER_DELAY_SEC": 1}, 1_700_000_001_000, 1_700_000_002),
    ({"TIMER_DELIVER_MS": "x", "TIMER_DELAY_MS": 1500}, 1_700_000_001_000, 1_700_000_002),
]


@pytest.mark.parametrize(("asked", "out_ms", "due"), TIMES, ids=[str(asked) for asked, _, _ in TIMES])
def test_a_timer_message_is_delivered_at_the_next_full_second(
    clock: ManualClock, asked: dict[str, Any], out_ms: int, due: int
) -> None:
    store = in_memory(clock=clock)
    schedule = ScheduleMessageService(store, BrokerSettings(), clock, NoJournal())
    schedule.put(timed(TAGS="a", **asked))

    (waiting,) = records(store, TIMER_TOPIC)
    expected = {key: str(value) for key, value in asked.items()}
    expected |= {"TAGS": "a", "TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": "T", "REAL_QID": "2"}
    assert waiting.properties == expected
    assert schedule.next_due() == due
    clock.turn(due - clock.wall() - 0.01)
    schedule.wake()
    assert bodies(store, "T", 2) == []
    clock.turn(0.01)
    schedule.wake()
    (come,) = records(store, "T", 2)
    assert come.properties == expected | {
        "TIMER_ENQUEUE_MS": str(NOW_MS // 1000 * 1000),
        "TIMER_DEQUEUE_MS": str(due * 1000),
    }
    assert schedule.next_due() is None
    schedule.wake()
    assert len(records(store, "T", 2)) == 1


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELIVER_MS": NOW_MS - 5000},
        {"TIMER_DELIVER_MS": NOW_MS},
        {"TIMER_DELAY_MS": 0},
        {"TIMER_DELAY_SEC": -5},
        {"TIMER_DELAY_SEC": 9, "TIMER_OUT_MS": 5},
    ],
)
def test_a_message_with_a_past_time_is_delivered_at_once(clock: ManualClock, asked: dict[str, Any]) -> None:
    """So is a message that was already a timer message."""
    store = in_memory(clock=clock)
    ScheduleMessageService(store, BrokerSettings(), clock, NoJournal()).put(timed(**asked))

    (come,) = records(store, "T", 2)
    assert come.properties == {key: str(value) for key, value in asked.items()}


def test_a_delay_level_has_priority_over_a_timer(clock: ManualClock) -> None:
    store = in_memory(clock=clock)
    schedule = ScheduleMessageService(store, BrokerSettings(), clock, NoJournal())
    schedule.put(timed(DELAY=1, TIMER_DELAY_SEC=9, TIMER_DELAY_MS=9, TIMER_DELIVER_MS=NOW_MS + 9000))

    clock.turn(1)
    schedule.wake()

    (come,) = records(store, "T", 2)
    assert come.properties == {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "2"}


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELAY_MS": "1_0"},
        {"TIMER_DELAY_SEC": str(3 * DAY_SECONDS + 1)},
        {"TIMER_DELIVER_MS": str(NOW_MS + 4 * DAY_SECONDS * 1000)},
        {"TIMER_DELIVER_MS": str(NOW_MS - 5), "TIMER_DEL_UNIQKEY": "u"},
    ],
)
async def test_invalid_times_are_rejected(embedded: EmbeddedRocketMQ, peer: Peer, asked: dict[str, str]) -> None:
    reply = await peer.call(310, letters(properties=asked), b"1")

    assert (reply.code, reply.remark) == (
        13,
        "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; "
        "or if set del msg, the delay time should be bigger than the current time",
    )
    assert embedded.broker.store.end == 0


async def test_the_maximum_delay_is_a_setting(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    embedded.broker.change_settings(replace(embedded.broker.settings, timerMaxDelaySec=10))

    assert (await peer.call(310, letters(properties={"TIMER_DELAY_SEC": "10"}), b"1")).code == 0
    reply = await peer.call(310, letters(properties={"TIMER_DELAY_SEC": "11"}), b"1")
    assert reply.code == 13
    assert "the max delay 10000ms" in str(reply.remark)


async def test_the_response_has_the_requested_queue_and_a_recall_handle(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    fields = letters(properties={"TIMER_DELAY_SEC": "1", "UNIQ_KEY": "u"}, e=3)
    await peer.call(310, fields, b"1")

    reply = await peer.call(310, fields, b"1")

    handle = base64.urlsafe_b64decode(reply.ext_fields.pop("recallHandle")).decode()
    assert handle == f"v1 T {embedded.broker.name} 1700000001001 u"
    assert (reply.ext_fields["queueId"], reply.ext_fields["queueOffset"]) == ("3", "1")


async def test_a_retry_has_no_recall_handle(peer: Peer) -> None:
    reply = await peer.call(310, letters("%RETRY%g", {"TIMER_DELAY_SEC": "1"}), b"1")

    assert reply.code == 0
    assert "recallHandle" not in reply.ext_fields


def test_a_message_too_large_for_its_delivery_is_rejected_at_once(clock: ManualClock) -> None:
    store = in_memory(clock=clock)
    schedule = ScheduleMessageService(store, BrokerSettings(), clock, NoJournal())

    with pytest.raises(InvalidMessageError):
        schedule.put(timed(TIMER_DELAY_SEC=1, own="y" * 32_640))
    schedule.put(timed(TIMER_DELAY_SEC=1, own="y" * 32_600))

    clock.turn(2)
    schedule.wake()
    assert len(records(store, "T", 2)) == 1


async def test_a_message_sent_to_the_timer_topic_is_not_delivered(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock
) -> None:
    """In RocketMQ such a message stalls all timers."""
    await peer.call(310, letters(TIMER_TOPIC, {"TIMER_DELAY_SEC": "1"}), b"stray")
    await peer.call(310, letters(properties={"TIMER_DELAY_SEC": "1"}), b"1")
    clock.turn(2)
    embedded.broker.schedule.wake()

    assert bodies(embedded.broker.store, "T") == ["1"]


async def test_timers_survive_a_crash(tmp_path: Path, clock: ManualClock) -> None:
    """Each message is delivered once."""
    store, data_dir = in_folder(tmp_path / "data", clock=clock)
    with closing(data_dir):
        schedule = ScheduleMessageService(store, BrokerSettings(), clock, data_dir)
        for seconds in (5, 1, 3, 7):
            schedule.put(timed(str(seconds), TIMER_DELAY_SEC=seconds))
        clock.turn(2)
        schedule.wake()
        data_dir.commit()
        clock.turn(2)
        schedule.wake()  # not committed
        left = Path(shutil.copytree(tmp_path / "data", tmp_path / "left"))

    store, data_dir = in_folder(left, clock=clock)
    with closing(data_dir):
        schedule = ScheduleMessageService(store, BrokerSettings(), clock, data_dir)
        assert bodies(store, "T", 2) == ["1"]
        schedule.wake()
        assert bodies(store, "T", 2) == ["1", "3"]
        clock.turn(10)
        schedule.wake()
        assert bodies(store, "T", 2) == ["1", "3", "5", "7"]
        assert schedule.next_due() is None


def test_retention_keeps_undelivered_messages(clock: ManualClock) -> None:
    store = in_memory(BrokerSettings(fileReservedTime=1), clock)
    schedule = ScheduleMessageService(store, BrokerSettings(), clock, NoJournal())
    schedule.put(timed("delivered", TIMER_DELAY_SEC=1))
    schedule.put(timed("waits", TIMER_DELAY_SEC=2 * DAY_SECONDS))
    clock.turn(2)
    schedule.wake()
    clock.turn(DAY_SECONDS)

    store.expire()

    assert bodies(store, TIMER_TOPIC) == ["waits"]
    clock.turn(DAY_SECONDS)
    schedule.wake()
    assert bodies(store, "T", 2) == ["waits"]
