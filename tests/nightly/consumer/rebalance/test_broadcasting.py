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


async def test_messages_may_be_given_up_one_by_one(broker: ScriptedBroker, queue: MessageQueue, place: Place) -> None:
    await broker.store(queue, b"a", b"b", b"c")

    async def handle(batch: Batch) -> None:
        for message in batch:
            if message.body == b"b":
                batch.retry(message)

    async with member(broker.peer.address, handle, **place(consume_message_batch_max_size=3)) as running:
        await place.has(queue, 3)
        counted = running.topic().handled

    assert (counted["acked"], counted["dead_lettered"]) == (2, 1)


async def test_a_handler_that_takes_too_long_loses_its_message(
    broker: ScriptedBroker, queue: MessageQueue, place: Place
) -> None:
    await broker.store(queue, b"slow")
    async with member(broker.peer.address, Blocked(), **place(consume_timeout_seconds=0.1)) as running:
        await place.has(queue, 1)
        assert running.topic().handled["dead_lettered"] == 1

    assert broker.sent_back == []


async def test_an_orderly_group_without_a_limit_repeats_for_ever(
    broker: ScriptedBroker, queue: MessageQueue, place: Place
) -> None:
    """As Java's; what stands behind the message waits."""
    await broker.store(queue, b"bad", b"c")
    seen: list[bytes] = []

    async def handle(batch: Batch) -> None:
        seen.append(batch[0].body)
        raise Retry

    options = place(consume_mode="orderly", suspend_current_queue_time_seconds=0.01)
    async with member(broker.peer.address, handle, **options):
        await eventually(lambda: len(seen) == 20, "it is repeated")
        assert set(seen) == {b"bad"}
        assert place.stored() == {queue: 0}


async def test_a_graceful_stop_repeats_nothing(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place
) -> None:
    """Also where no persist came between."""
    await broker.store(queue, b"a", b"b")
    for _ in range(2):
        options = place(persist_consumer_offset_interval_seconds=3600.0)
        async with member(broker.peer.address, seen, **options) as running:
            await eventually(lambda: seen.bodies[-1:] == [b"b"], "all is handled")
            await running.stop()
    await broker.store(queue, b"c")
    async with member(broker.peer.address, seen, **place()):
        await seen.has(b"a", b"b", b"c")


async def test_kill_9_repeats_what_was_not_stored_and_loses_nothing(
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


async def test_a_member_that_waits_for_its_topic_is_known(broker: ScriptedBroker, place: Place, seen: Seen) -> None:
    """Its file says so, though no queue is in it: what made the topic is consumed after a restart, too."""
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
async def test_a_full_disk_stops_no_handler_and_is_made_up_for(
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
            await eventually(lambda: "offset.not_stored" in [line["event"] for line in logs], "it is said")
            await eventually(lambda: running.consumer.snapshot().problems, "it is a problem of the group", 10)
            assert place.stored() == {queue: 1}
            disk.empty()
            await place.has(queue, 3)
            await running.stop()

    events = [line["event"] for line in logs if line["event"].startswith("offset.")]
    assert events == ["offset.not_stored", "offset.stored_again"]


async def test_a_new_queue_waits_until_its_start_can_be_stored(
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
            await eventually(lambda: "queue.start_failed" in [line["event"] for line in logs], "it is said")
            assert seen.bodies == []
            faulty.undo()
            await seen.has(b"a")
            await running.stop()


async def test_a_group_whose_files_are_damaged_fails_and_leaves_them(
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


async def test_the_end_says_what_could_not_be_stored(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member leaves in order all the same."""
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


async def test_a_queue_that_is_not_in_the_file_came_later(broker: ScriptedBroker, place: Place, seen: Seen) -> None:
    """While the member ran, and while it was away: from the first message. A new group's file has all queues."""
    queues = broker.create_topic(TOPIC, 2)
    for queue in queues:
        await broker.store(queue, b"old")
    options: dict[str, Any] = place(consume_from_where="last_offset", poll_seconds=0.05)
    async with member(broker.peer.address, seen, **options):
        await eventually(lambda: place.stored() == dict.fromkeys(queues, 1), "the group is founded")
        [later] = broker.create_topic(TOPIC, 3)[2:]
        await broker.store(later, b"running")
        await seen.has(b"running")
        await place.has(later, 1)
    [latest] = broker.create_topic(TOPIC, 4)[3:]
    await broker.store(latest, b"away")
    async with member(broker.peer.address, seen, **options):
        await seen.has(b"running", b"away")


@pytest.mark.parametrize(("where", "first"), [("last_offset", 2), ("first_offset", 0)])
async def test_a_new_queues_start_is_stored_before_anything_is_handled(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place, where: str, first: int
) -> None:
    """What is sent while the member is down would be passed over by "the queue's end"."""
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
async def test_a_file_whose_offset_is_beyond_the_end(
    broker: ScriptedBroker, place: Place, seen: Seen, *, is_newer: bool
) -> None:
    """A topic that is newer than the file is read from its first message; of another one it is said what is not."""
    [queue] = broker.create_topic(TOPIC)
    OffsetsFile(place.path / GROUP).save({queue: 100})
    await broker.store(queue, b"0", b"1", store_timestamp=2**41 if is_newer else 1000)
    async with member(broker.peer.address, seen, **place()) as m:
        if is_newer:
            await seen.has(b"0", b"1")
        await place.has(queue, 2)
        told = [problem.evidence.partition("end: ")[2] for problem in m.consumer.snapshot().problems]
        assert told == ([] if is_newer else ["2 messages before 2 are not read"])


async def test_an_operators_reset_moves_the_file(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, place: Place
) -> None:
    await broker.store(queue, b"a", b"b")
    async with member(broker.peer.address, seen, **place()) as running:
        await place.has(queue, 2)
        broker.answer_pull(queue, broker.nothing(queue, ResponseCode.PULL_OFFSET_MOVED, 1, "OFFSET_RESET"))
        await broker.store(queue, b"c")  # wakes the pull that is held
        await eventually(lambda: seen.bodies == [b"a", b"b", b"c", b"b", b"c"], f"b comes again: {seen.bodies}")
        await place.has(queue, 3)
        await running.stop()
