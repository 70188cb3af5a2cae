"""Broadcasting groups against a scripted broker: everything to every member, offsets in files, failures dropped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.offsets.local_file_store import OffsetsFile
from rmqd.errors import OffsetStoreError
from rmqd.handler_api.batch import Batch, Retry
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import member
from tests.consumer.offsets.disks import disk_error, small_disk
from tests.consumer.rebalance.test_broadcasting import Place, place
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["place"]

pytestmark = pytest.mark.usefixtures("unpaced")


async def test_a_retry_of_one_message_drops_only_this_message(
    broker: ScriptedBroker, queue: MessageQueue, place: Place
) -> None:
    await broker.store(queue, b"a", b"b", b"c")

    async def handle(batch: Batch) -> None:
        for message in batch:
            if message.body == b"b":
                batch.retry(message)

    async with member(broker.peer.address, handle, **place(consume_message_batch_max_size=3)) as running:
        await place.has(queue, 3)
        counted = running.topic().handled

    assert (counted["acked"], counted["dead_lettered"]) == (2, 1)


async def test_an_expired_message_is_dropped(broker: ScriptedBroker, queue: MessageQueue, place: Place) -> None:
    await broker.store(queue, b"slow")
    async with member(broker.peer.address, Blocked(), **place(consume_timeout_seconds=0.1)) as running:
        await place.has(queue, 1)
        assert running.topic().handled["dead_lettered"] == 1

    assert broker.sent_back == []


async def test_an_orderly_group_without_a_limit_retries_for_ever(
    broker: ScriptedBroker, queue: MessageQueue, place: Place
) -> None:
    """As in Java. Later messages wait."""
    await broker.store(queue, b"bad", b"c")
    seen: list[bytes] = []

    async def handle(batch: Batch) -> None:
        seen.append(batch[0].body)
        raise Retry

    options = place(consume_mode="orderly", suspend_current_queue_time_seconds=0.01)
    async with member(broker.peer.address, handle, **options):
        await eventually(lambda: len(seen) == 20, "it is retried")
        assert set(seen) == {b"bad"}
        assert place.stored() == {queue: 0}


async def test_a_graceful_stop_repeats_nothing(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place
) -> None:
    """Even without a periodic commit before it."""
    await broker.store(queue, b"a", b"b")
    for _ in range(2):
        options = place(persist_consumer_offset_interval_seconds=3600.0)
        async with member(broker.peer.address, seen, **options) as running:
            await eventually(lambda: seen.bodies[-1:] == [b"b"], "all is handled")
            await running.stop()
    await broker.store(queue, b"c")
    async with member(broker.peer.address, seen, **place()):
        await seen.has(b"a", b"b", b"c")


async def test_kill_9_repeats_uncommitted_messages_and_loses_nothing(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place
) -> None:
    async with member(broker.peer.address, seen, **place()) as running:
        await broker.store(queue, b"a", b"b")
        await place.has(queue, 2)
        await running.stop()
    async with member(broker.peer.address, seen, **place(persist_consumer_offset_interval_seconds=3600.0)) as running:
        await broker.store(queue, b"c")
        await seen.has(b"a", b"b", b"c")
        await running.die()
    async with member(broker.peer.address, seen, **place()):
        await seen.has(b"a", b"b", b"c", b"c")


async def test_a_member_that_waits_for_its_topic_is_recorded_in_the_file(
    broker: ScriptedBroker, place: Place, seen: Seen
) -> None:
    """The file lists no queue of the topic. So the message that creates the topic is consumed after a restart."""
    other = broker.create_topic("other")[0]
    options: dict[str, Any] = place(consume_from_where="last_offset", subscriptions=[TOPIC, "other"])
    async with member(broker.peer.address, seen, **options):
        await place.has(other, 0)
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"first")
    async with member(broker.peer.address, seen, **options):
        await seen.has(b"first")


async def test_lag_and_committed_offsets_come_from_the_file(
    broker: ScriptedBroker, queue: MessageQueue, place: Place
) -> None:
    await broker.store(queue, *[b"x"] * 5)
    blocked = Blocked()
    async with member(broker.peer.address, blocked, **place()) as running:
        await eventually(lambda: (found := running.queue()) is not None and found.lag == 5, "it lags by 5")
        blocked.release.set()
        await eventually(lambda: (found := running.queue()) is not None and found.committed == 5, "5 are committed")
        found = running.queue()
        assert found is not None
        assert (found.lag, found.last_commit is not None, place.stored()) == (0, True, {queue: 5})


@pytest.mark.process
async def test_a_full_disk_stops_no_handler_and_offsets_are_stored_later(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk, capture_logs() as logs:
        place = Place(disk.path / "offsets")
        async with member(broker.peer.address, seen, **place()) as running:
            await broker.store(queue, b"a")
            await place.has(queue, 1)
            disk.fill()
            await broker.store(queue, b"b", b"c")
            await seen.has(b"a", b"b", b"c")
            await eventually(lambda: "offset.not_stored" in [line["event"] for line in logs], "it is logged")
            await eventually(lambda: running.consumer.snapshot().problems, "it is a problem of the group", 10)
            assert place.stored() == {queue: 1}
            disk.empty()
            await place.has(queue, 3)
            await running.stop()

    events = [line["event"] for line in logs if line["event"].startswith("offset.")]
    assert events == ["offset.not_stored", "offset.stored_again"]


async def test_a_new_queue_waits_until_its_start_offset_can_be_stored(
    broker: ScriptedBroker,
    queue: MessageQueue,
    seen: Seen,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    flowing: ManualClock,
) -> None:
    def full(*_: object) -> None:
        raise disk_error()

    await broker.store(queue, b"a")
    with capture_logs() as logs, monkeypatch.context() as faulty:
        faulty.setattr(OffsetsFile, "save", full)
        async with member(broker.peer.address, seen, clock=flowing, **place()) as running:
            await eventually(lambda: "queue.start_failed" in [line["event"] for line in logs], "it is logged")
            assert seen.bodies == []
            faulty.undo()
            await seen.has(b"a")
            await running.stop()


async def test_a_group_with_damaged_files_fails_and_keeps_them(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place
) -> None:
    await broker.store(queue, b"a")
    file = OffsetsFile(place.path / GROUP)
    file.save({queue: 1})
    file.path.write_bytes(b"{")

    async def run() -> None:
        async with member(broker.peer.address, seen, **place()) as running:
            await asyncio.wait((running.task,))
            assert "with a good copy" in (running.consumer.snapshot().failure or "")

    with pytest.raises(OffsetStoreError, match=r"offsets\.json is damaged"):
        await run()
    assert (seen.bodies, file.path.read_bytes(), broker.peer.got(RequestCode.HEART_BEAT)) == ([], b"{", [])


async def test_a_stop_logs_offsets_that_could_not_be_stored(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member leaves the group in order anyway."""
    options = place(persist_consumer_offset_interval_seconds=3600.0)
    async with member(broker.peer.address, seen, **options) as running:
        await broker.store(queue, b"a")
        await seen.has(b"a")

        def full(*_: object) -> None:
            raise disk_error()

        monkeypatch.setattr(OffsetsFile, "save", full)
        with capture_logs() as logs:
            await running.stop()

    assert {"offset.not_stored", "offset.commit_failed", "group.left"} <= {line["event"] for line in logs}


async def test_a_queue_that_is_not_in_the_file_starts_at_its_first_message(
    broker: ScriptedBroker, place: Place, seen: Seen
) -> None:
    """It was created while the member ran, or was stopped. The file of a new group has all queues."""
    queues = broker.create_topic(TOPIC, 2)
    for queue in queues:
        await broker.store(queue, b"old")
    options: dict[str, Any] = place(consume_from_where="last_offset", poll_seconds=0.05)
    async with member(broker.peer.address, seen, **options):
        await eventually(lambda: place.stored() == dict.fromkeys(queues, 1), "the group has its start offsets")
        [later] = broker.create_topic(TOPIC, 3)[2:]
        await broker.store(later, b"running")
        await seen.has(b"running")
        await place.has(later, 1)
    [latest] = broker.create_topic(TOPIC, 4)[3:]
    await broker.store(latest, b"away")
    async with member(broker.peer.address, seen, **options):
        await seen.has(b"running", b"away")


@pytest.mark.parametrize(("where", "first"), [("last_offset", 2), ("first_offset", 0)])
async def test_the_start_offset_of_a_new_queue_is_stored_before_any_call(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place, where: str, first: int
) -> None:
    """Otherwise messages sent while the member is down would be skipped by a start at the queue's end."""
    await broker.store(queue, b"a", b"b")
    options = place(consume_from_where=where, persist_consumer_offset_interval_seconds=3600.0)
    async with member(broker.peer.address, Blocked(), **options) as running:
        await eventually(lambda: running.queue() is not None, "it has the queue")
        await running.die()
    await broker.store(queue, b"c")
    async with member(broker.peer.address, seen, **options):
        await seen.has(*[b"a", b"b", b"c"][first:])


@pytest.mark.parametrize("is_newer", [True, False])
@pytest.mark.usefixtures("hasty")
async def test_an_offset_in_the_file_beyond_the_end_of_the_queue(
    broker: ScriptedBroker, place: Place, seen: Seen, *, is_newer: bool
) -> None:
    """A topic newer than the file is read from its first message. Otherwise unread messages are reported."""
    [queue] = broker.create_topic(TOPIC)
    OffsetsFile(place.path / GROUP).save({queue: 100})
    await broker.store(queue, b"0", b"1", store_timestamp=2**41 if is_newer else 1000)
    async with member(broker.peer.address, seen, **place()) as m:
        if is_newer:
            await seen.has(b"0", b"1")
        await place.has(queue, 2)
        told = [problem.evidence.partition("end: ")[2] for problem in m.consumer.snapshot().problems]
        assert told == ([] if is_newer else ["2 messages before 2 are not read"])


async def test_an_operators_reset_changes_the_file(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place
) -> None:
    await broker.store(queue, b"a", b"b")
    async with member(broker.peer.address, seen, **place()) as running:
        await place.has(queue, 2)
        broker.answer_pull(queue, broker.nothing(queue, ResponseCode.PULL_OFFSET_MOVED, 1, "OFFSET_RESET"))
        await broker.store(queue, b"c")  # ends the held pull
        await eventually(lambda: seen.bodies == [b"a", b"b", b"c", b"b", b"c"], f"b is redelivered: {seen.bodies}")
        await place.has(queue, 3)
        await running.stop()
