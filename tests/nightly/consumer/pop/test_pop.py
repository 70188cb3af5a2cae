"""A group in POP mode beside the embedded broker: what is acknowledged, kept, given back, and read after a switch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rmqd.client.api.admin import create_topic
from rmqd.codes import RequestCode
from rmqd.consumer.options import DeduplicationOptions
from rmqd.handler_api import Batch
from rmqd.wire.topics import pop_retry_topic
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import Member
from tests.consumer.pop.popping import LONG_SECONDS, Popping
from tests.consumer.pop.test_pop import BODIES, looks_often, pop
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["looks_often", "pop"]


def renewals(one: Member) -> int:
    """How often it has asked for messages to stay hidden."""
    durations = one.client.snapshot().requests.get(int(RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
    return 0 if durations is None else sum(durations.counts)


async def test_a_queue_that_comes_later_is_popped_from_its_first_message(pop: Popping, seen: Seen) -> None:
    """A new group begins at the end. The broker pops queues that no member knows of yet, and is told to begin first."""
    pop.rocketmq.broker.offsets.forget(group=GROUP)
    await pop.send(*[b"old"] * 8)
    await pop.clock.sleep(1)
    async with pop.member(seen):
        await eventually(lambda: len(pop.rocketmq.broker.offsets.queues(GROUP, TOPIC)) == 4, "the group is founded")
        await pop.send(*[b"new"] * 4)
        await eventually(lambda: len(seen.bodies) >= 4, "what is new is handled")
        await create_topic(pop.client.remoting, pop.rocketmq.broker.address, TOPIC, 8)
        await pop.client.routes.refresh(TOPIC)
        await pop.send(*[b"more"] * 16)
        await eventually(lambda: seen.bodies.count(b"more") >= 16, "all of it is handled")
    await create_topic(pop.client.remoting, pop.rocketmq.broker.address, TOPIC, 12)
    await pop.client.routes.refresh(TOPIC)
    await pop.send(*[b"away"] * 24)
    async with pop.member(seen):
        await eventually(lambda: seen.bodies.count(b"away") >= 24, "also what came while the group was away")
    assert Counter(seen.bodies) == {b"new": 4, b"more": 16, b"away": 24}


async def test_what_a_handler_has_is_kept_hidden_for_as_long_as_it_takes(pop: Popping) -> None:
    calls: Counter[bytes] = Counter()
    handler = Blocked()

    async def slow(batch: Batch) -> None:
        calls.update(message.body for message in batch)
        await handler(batch)

    await pop.send(b"one", b"two")
    async with pop.member(slow, pop_invisible_time_seconds=10.0) as one:
        await eventually(lambda: renewals(one) >= 6, "both are hidden for longer three times", LONG_SECONDS)
        handler.release.set()
        await eventually(lambda: one.topic().handled["acked"] == 2, "both are handled")
        await eventually(pop.hides_nothing, "nothing will come again")
        assert calls == {b"one": 1, b"two": 1}
        assert not one.topic().duplicates
    assert await pop.lag() == 0


async def test_what_no_handler_has_in_time_is_left_to_others(pop: Popping) -> None:
    first = Blocked()
    second = Seen()
    await pop.send(*BODIES[:10])
    with capture_logs() as logs:
        async with pop.member(first, concurrency=1, pop_invisible_time_seconds=10.0) as one:
            await eventually(lambda: one.topic().received == 10, "it has popped all")
            async with pop.member(second, pop_invisible_time_seconds=10.0):
                await eventually(lambda: len(second.bodies) == 9, "the others went to the second member", LONG_SECONDS)
                first.release.set()
                await eventually(lambda: one.topic().handled["acked"] == 1, "its own is done")
    assert sum(entry["messages"] for entry in logs if entry["event"] == "pop.left_to_others") >= 9


async def test_what_waits_for_the_store_of_claims_loses_no_attempt(pop: Popping, tmp_path: Path) -> None:
    place, attempts = tmp_path / "claims.db", list[int]()
    place.mkdir()  # so the store answers nothing but errors

    async def handle(batch: Batch) -> None:
        attempts.append(batch[0].reconsume_times)

    options = {
        "concurrency": 1,
        "deduplication": DeduplicationOptions("msg_id", "sqlite", str(place), 3600.0),
        "pop_invisible_time_seconds": 10.0,
    }
    await pop.send(*BODIES[:5])
    with capture_logs() as logs:
        async with pop.member(handle, **options) as one:
            await eventually(lambda: one.topic().received == 5, "it has popped all")
            await eventually(lambda: renewals(one) >= 15, "all are hidden for longer three times", LONG_SECONDS)
            place.rmdir()
            await eventually(lambda: one.topic().handled["acked"] == 5, "all are handled", LONG_SECONDS)
    assert attempts == [0] * 5
    assert not [entry for entry in logs if entry["event"] == "pop.left_to_others"]


@pytest.mark.usefixtures("looks_often")
async def test_a_group_that_is_to_pull_again_also_reads_what_it_had_popped(pop: Popping) -> None:
    first, second = Blocked(), Seen()
    await pop.send(*BODIES[:20])
    async with pop.member(first, concurrency=1, pop_invisible_time_seconds=10.0) as one:
        await eventually(lambda: one.topic().received == 20, "it has popped all")
        await one.die()
    await pop.set_mode("PULL")
    async with pop.member(second, pop_invisible_time_seconds=10.0) as two:
        await eventually(lambda: set(second.bodies) == set(BODIES[:20]), "all of it is handled", LONG_SECONDS)
        topics = [queue.topic for queue in two.consumer.snapshot().queues]
        assert pop_retry_topic(GROUP, TOPIC) in topics
        await eventually(
            lambda: pop_retry_topic(GROUP, TOPIC) not in [one.topic for one in two.consumer.snapshot().queues],
            "it was empty for as long as messages are hidden",
            LONG_SECONDS,
        )
        assert two.queue(0) is not None
        await pop.set_mode("POP")
        two.consumer.on_consumer_ids_changed()
        await eventually(lambda: two.queue(-1) is not None, "it pops", LONG_SECONDS)
        await pop.send(b"popped")
        await eventually(lambda: b"popped" in second.bodies, "it handles what it pops")


async def test_members_that_share_some_queues_each_pop_theirs(pop: Popping, seen: Seen) -> None:
    await pop.set_mode("POP", share=1)
    await pop.send(*BODIES[:40])
    async with pop.member(seen) as one, pop.member(seen) as two, pop.member(seen) as three:
        shares = [{(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)}, {(TOPIC, 2), (TOPIC, 3)}, {(TOPIC, 3), (TOPIC, 0), (TOPIC, 1)}]
        await eventually(
            lambda: all(each.owned() in shares for each in (one, two, three)), "each has its own and the next one's"
        )
        await pop.send(*BODIES[40:80])
        await eventually(lambda: len(seen.bodies) == 80, "all are handled")
    assert len(set(seen.bodies)) == 80
    assert await pop.lag() == 0


async def test_messages_that_the_filter_does_not_match_are_acknowledged_at_once(pop: Popping, seen: Seen) -> None:
    await pop.send(b"a", tags="a")
    await pop.send(b"b", tags="b")
    async with pop.member(seen, subscriptions={TOPIC: "a"}, pop_invisible_time_seconds=10.0):
        await seen.has(b"a")
        await eventually(lambda: len(seen.bodies) == 1, "only that")
