"""Delay levels of the embedded broker: time of delivery, exactly one delivery, also after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from rmqd.broker.held_requests import GroupQueue
from rmqd.broker.schedule import ScheduleMessageService
from rmqd.broker.store.journal import Journal, NoJournal
from rmqd.broker.store.message_store import MessageStore
from rmqd.runtime.clock import SystemClock
from rmqd.wire.bodies.heartbeat_data import java_hash
from rmqd.wire.messages.encode import StoredMessage
from tests.broker.peer import connected
from tests.broker.records import letters, records
from tests.broker.stores import bodies, in_folder, in_memory, messages
from tests.clock import ManualClock

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
PULL = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "2",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "6",  # hold the pull; the subscription is in the request
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "0",
}
SECONDS = {1: 1, 3: 10, 4: 30, 5: 60, 17: 3600, 18: 7200}


class ShiftedClock(SystemClock):
    """The system clock, which a test can set forward."""

    ahead_seconds = 0.0

    def wall(self) -> float:
        return time.time() + self.ahead_seconds


def service(
    store: MessageStore, clock: ManualClock | ShiftedClock, journal: Journal | None = None, levels: str = ""
) -> ScheduleMessageService:
    settings = BrokerSettings(messageDelayLevel=levels) if levels else BrokerSettings()
    return ScheduleMessageService(store, settings, clock, journal or NoJournal())


def delayed(level: object, body: str = "x", **changed: object) -> StoredMessage:
    properties = {"DELAY": str(level), "TAGS": "a"} if level is not None else {}
    message = StoredMessage(topic="T", body=body.encode(), queue_id=2, properties=properties)
    return replace(message, **changed)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def running(schedule: ScheduleMessageService) -> AsyncIterator[None]:
    task = asyncio.create_task(schedule.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("level", SECONDS)
def test_a_message_is_delivered_when_its_delay_is_over(level: int) -> None:
    clock = ManualClock()
    store = in_memory(clock=clock)
    schedule = service(store, clock)
    start = clock.wall()

    schedule.put(delayed(level))

    assert schedule.next_due() == start + SECONDS[level]
    clock.turn(SECONDS[level] - 0.002)
    schedule.wake()
    assert bodies(store, "T", 2) == []
    clock.turn(0.002)
    schedule.wake()
    assert bodies(store, "T", 2) == ["x"]
    assert schedule.next_due() is None
    schedule.wake()
    assert bodies(store, "T", 2) == ["x"]


def test_a_delayed_message_waits_in_the_queue_of_its_level_with_its_properties() -> None:
    """The index holds the delivery time in place of the tag's hash. Waiting messages are found only by it."""
    clock = ManualClock()
    store = in_memory(clock=clock)
    schedule = service(store, clock)
    message = delayed(3, born_host="192.0.2.7:1", reconsume_times=2, flag=7)

    stored = schedule.put(message)

    properties = {"DELAY": "3", "TAGS": "a", "REAL_TOPIC": "T", "REAL_QID": "2"}
    (waiting,) = records(store, SCHEDULE, 2)
    assert waiting.properties == stored.message.properties == properties
    queue = store.queue(SCHEDULE, 2)
    assert queue is not None
    entry = queue.entry(0)
    assert entry is not None
    assert entry.tags_code == round((clock.wall() + 10) * 1000)
    clock.turn(10)
    schedule.wake()
    (come,) = records(store, "T", 2)
    assert replace(come, queue_offset=0, commit_log_offset=0, store_timestamp=0, store_host="") == replace(
        message, properties=properties, queue_offset=0, store_host=""
    )
    queue = store.queue("T", 2)
    assert queue is not None
    assert queue.entries(0, 1)[0].tags_code == java_hash("a")


@pytest.mark.parametrize(("asked", "level"), [(19, "18"), (2**40, "18"), ("7", "7")])
def test_a_level_above_the_maximum_is_the_last_level(asked: object, level: str) -> None:
    clock = ManualClock()
    store = in_memory(clock=clock)

    service(store, clock).put(delayed(asked))

    assert records(store, SCHEDULE, int(level) - 1)[0].properties["DELAY"] == level


@pytest.mark.parametrize("level", [None, 0, -1])
def test_a_message_without_a_level_is_delivered_at_once(level: int | None) -> None:
    clock = ManualClock()
    store = in_memory(clock=clock)

    service(store, clock).put(delayed(level))

    assert bodies(store, "T", 2) == ["x"]


def test_retention_keeps_undelivered_messages() -> None:
    clock = ManualClock()
    store = in_memory(BrokerSettings(fileReservedTime=1), clock)
    schedule = service(store, clock)
    schedule.put(delayed(1, "delivered"))
    clock.turn(1)
    schedule.wake()
    schedule.put(delayed(18, "waits"))
    clock.turn(7199)

    store.expire()

    assert store.min_offset("T", 2) == 1
    clock.turn(1)
    schedule.wake()
    assert bodies(store, "T", 2) == ["waits"]
    assert records(store, SCHEDULE, 0) == []


# --- after a restart


@contextlib.contextmanager
def restarted(directory: Path, clock: ManualClock) -> Iterator[tuple[MessageStore, ScheduleMessageService]]:
    """Open a copy of the folder, as a new process would find it after a crash now."""
    left = shutil.copytree(directory, directory.with_name(directory.name + "'"))
    store, data_dir = in_folder(left, clock=clock)
    with closing(data_dir):
        yield store, service(store, clock, data_dir)


async def test_each_message_is_delivered_once_despite_a_crash(tmp_path: Path) -> None:
    clock = ManualClock()
    store, data_dir = in_folder(tmp_path / "data", clock=clock)
    with closing(data_dir):
        schedule = service(store, clock, data_dir)
        schedule.put(delayed(1, "delivered before"))
        schedule.put(delayed(3, "waits"))
        clock.turn(1)
        schedule.wake()
        schedule.put(delayed(1, "waits too"))
        data_dir.commit()
        clock.turn(60)
        schedule.wake()  # not committed: the loop iteration is not over
        with restarted(tmp_path / "data", clock) as (left, schedule):
            assert bodies(left, "T", 2) == ["delivered before"]
            schedule.wake()
            assert sorted(bodies(left, "T", 2)) == ["delivered before", "waits", "waits too"]
            assert schedule.next_due() is None


# --- the schedule's task


async def test_the_task_delivers_a_message_when_it_is_due() -> None:
    clock = ShiftedClock()
    store = in_memory(clock=clock)  # type: ignore[arg-type]
    schedule = service(store, clock)
    come = asyncio.Event()
    schedule.put(delayed(1))
    clock.ahead_seconds = 0.98
    store.on_arrival(lambda arrival: come.set() if arrival.topic == "T" else None)

    async with running(schedule), asyncio.timeout(25):
        await come.wait()


async def test_a_new_message_wakes_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both if no message waits, and if the next message is due much later."""
    monkeypatch.setattr("rmqd.broker.schedule.POLL_AGAIN_SECONDS", 3600)
    clock = ShiftedClock()
    store = in_memory(clock=clock)  # type: ignore[arg-type]
    schedule = service(store, clock, levels="0s 1h")
    come = asyncio.Event()
    store.on_arrival(lambda arrival: come.set() if arrival.topic == "T" else None)

    async with running(schedule), asyncio.timeout(25):
        for waits in (False, True):
            if waits:
                schedule.put(delayed(2))
            for _ in range(5):
                await asyncio.sleep(0)
            come.clear()
            schedule.put(delayed(1))
            await come.wait()


async def test_a_held_pull_gets_the_delivered_message(tmp_path: Path) -> None:
    """A jump of the broker's clock is sufficient. A pulled message is durable."""
    clock = ManualClock()
    options = EmbeddedOptions(topics={"T": 4}, data_dir=tmp_path / "data")
    async with embedded_rocketmq(options, clock) as rocketmq, connected(rocketmq.broker.address) as peer:
        broker = rocketmq.broker
        await peer.call(310, letters(properties={"DELAY": "3"}, e=2), b"x")
        held = peer.post(11, PULL)
        await peer.call(30, {"topic": "T", "queueId": "2"})
        assert broker.held_pulls.waiting_count(GroupQueue("T", "", 2)) == 1
        clock.turn(10)
        broker.schedule.wake()
        reply = await peer.reply(held)
        with restarted(tmp_path / "data", clock) as (left, schedule):
            assert [message.body for message in messages(reply.body)] == [b"x"]
            assert bodies(left, "T", 2) == ["x"]
            assert schedule.next_due() is None
