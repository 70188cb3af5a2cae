"""A group in pop mode with the embedded broker: acknowledgements, renewals, released messages, and switches to pull."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.client.api.admin_requests import create_topic
from rmqd.client.api.group_requests import consumer_running_info
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.consumer_options import DeduplicationOptions
from rmqd.errors import PopNotSupportedError
from rmqd.handler_api.batch import Batch, Retry
from rmqd.wire.topics import pop_retry_topic
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import Member, member
from tests.consumer.pop.popping import LONG_SECONDS, Popping, popping
from tests.consumer.pop.test_pop import BODIES, looks_often, pop
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

__all__ = ["looks_often", "pop"]


def renewals(one: Member) -> int:
    """How often the member has renewed invisible times."""
    durations = one.client.snapshot().requests.get(int(RequestCode.CHANGE_MESSAGE_INVISIBLETIME))
    return 0 if durations is None else sum(durations.counts)


async def test_a_later_queue_is_popped_from_its_first_message(pop: Popping, seen: Seen) -> None:
    """A new group starts at the end. Brokers pop queues that no member knows yet, and need a start offset."""
    pop.rocketmq.broker.offsets.forget(group=GROUP)
    await pop.send(*[b"old"] * 8)
    await pop.clock.sleep(1)
    async with pop.member(seen):
        await eventually(lambda: len(pop.rocketmq.broker.offsets.queues(GROUP, TOPIC)) == 4, "all have an offset")
        await pop.send(*[b"new"] * 4)
        await eventually(lambda: len(seen.bodies) >= 4, "the new messages are handled")
        await create_topic(pop.client.remoting, pop.rocketmq.broker.address, TOPIC, 8)
        await pop.client.routes.refresh(TOPIC)
        await pop.send(*[b"more"] * 16)
        await eventually(lambda: seen.bodies.count(b"more") >= 16, "all of it is handled")
    await create_topic(pop.client.remoting, pop.rocketmq.broker.address, TOPIC, 12)
    await pop.client.routes.refresh(TOPIC)
    await pop.send(*[b"away"] * 24)
    async with pop.member(seen):
        await eventually(lambda: seen.bodies.count(b"away") >= 24, "messages sent meanwhile are handled")
    assert Counter(seen.bodies) == {b"new": 4, b"more": 16, b"away": 24}


async def test_messages_in_flight_stay_invisible_until_they_are_settled(pop: Popping) -> None:
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
        await eventually(pop.hides_nothing, "no message will be redelivered")
        assert calls == {b"one": 1, b"two": 1}
        assert not one.topic().duplicates
    assert await pop.lag() == 0


async def test_messages_that_wait_for_the_lease_store_lose_no_attempt(pop: Popping, tmp_path: Path) -> None:
    place, attempts = tmp_path / "claims.db", list[int]()
    place.mkdir()  # so the store returns only errors

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


async def test_a_stopping_member_makes_its_waiting_messages_visible(pop: Popping) -> None:
    first, second = Blocked(), Seen()
    await pop.send(*BODIES[:20])
    async with pop.member(first, concurrency=1) as one:
        await eventually(lambda: one.topic().received == 20, "it has popped all")
        stopping = asyncio.create_task(one.stop())
        async with pop.member(second):
            await eventually(lambda: len(second.bodies) == 19, "long before the invisible time is over", LONG_SECONDS)
            first.release.set()
            await stopping
            assert len(set(second.bodies)) == 19
    assert one.topic().handled["acked"] == 1


@pytest.mark.usefixtures("looks_often")
async def test_popped_messages_keep_their_topic_when_they_are_pulled_and_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They come from the pop retry topic and, after another failure, from the group's own retry topic."""
    monkeypatch.setattr("rmqd.consumer.pop.pop_retries.POP_DELAY_LEVEL_SECONDS", (0.1,))
    monkeypatch.setattr(
        "rmqd.consumer.rebalance.rebalance.MIN_PASS_INTERVAL_SECONDS", 0.0
    )  # the group pulls before the delay level is over
    attempts: list[tuple[str, str]] = []

    async def fail(batch: Batch) -> None:
        attempts.extend((message.topic, message.message_queue.topic) for message in batch)
        if len(attempts) == 1:
            await pop.set_mode("PULL")
            running.consumer.on_consumer_ids_changed()
        if len(attempts) < 3:
            raise Retry(delay_level=1)

    async with popping() as pop:  # real time: with a flowing clock it would be popped once more
        await pop.send(b"x")
        async with pop.member(fail) as running:
            await eventually(lambda: len(attempts) == 3, "it was handled three times", LONG_SECONDS)
            await eventually(lambda: running.topic(is_retry=True).handled["acked"] == 1, "it is done")
    retry = pop_retry_topic(GROUP, TOPIC)
    assert attempts == [(TOPIC, TOPIC), (TOPIC, retry), (TOPIC, f"%RETRY%{GROUP}")]


async def test_members_pop_their_own_and_their_shared_queues(pop: Popping, seen: Seen) -> None:
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


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
async def test_a_group_that_no_longer_pops_reads_the_messages_it_had_popped(pop: Popping, mode: str) -> None:
    """The broker may still be configured to let the group pop."""
    first, second = Blocked(), Seen()
    await pop.send(*BODIES[:20])
    async with pop.member(first, concurrency=1, pop_invisible_time_seconds=10.0) as one:
        await eventually(lambda: one.topic().received == 20, "it has popped all")
        await one.die()
    options: dict[str, Any] = {"consume_mode": mode, "pop_invisible_time_seconds": 10.0, "clock": pop.clock}
    async with member(pop.rocketmq.nameserver, second, **options) as two:
        await eventually(lambda: set(second.bodies) == set(BODIES[:20]), "all of it is handled", LONG_SECONDS)
        await eventually(
            lambda: pop_retry_topic(GROUP, TOPIC) not in [one.topic for one in two.consumer.snapshot().queues],
            "it was empty for as long as messages are hidden",
            LONG_SECONDS,
        )
        assert two.queue(0) is not None
    assert await pop.lag(pop_retry_topic(GROUP, TOPIC)) == 0


async def test_in_a_namespace_handlers_see_plain_names(pop: Popping, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes the pop retry topic, which has the namespace in both of its parts."""
    monkeypatch.setattr("rmqd.consumer.pop.pop_retries.POP_DELAY_LEVEL_SECONDS", (0.1,))
    topic, group = f"NS%{TOPIC}", f"NS%{GROUP}"
    await create_topic(pop.client.remoting, pop.rocketmq.broker.address, topic, 1)
    await pop.set_mode("POP", topic=topic, group=group)
    seen: list[tuple[str, str]] = []

    async def fail_once(batch: Batch) -> None:
        seen.extend((message.topic, batch.message_queue.topic) for message in batch)
        if len(seen) == 1:
            raise Retry

    async with pop.member(fail_once, group=group, subscriptions=[topic], namespace="NS") as one:
        await eventually(lambda: pop.rocketmq.broker.offsets.queues(group, topic), "the group starts at the end")
        await pop.client.producer.send(OutgoingMessage(topic, b"x"))
        await eventually(lambda: one.topic(is_retry=True).handled["acked"] == 1, "it is done", LONG_SECONDS)
        assert one.topic(is_retry=True).topic == TOPIC
    assert seen == [(TOPIC, TOPIC), (TOPIC, pop_retry_topic(GROUP, TOPIC))]
    assert await pop.lag(pop_retry_topic(group, topic), group) == 0


async def test_running_info_shows_the_popped_messages(pop: Popping) -> None:
    handler = Blocked()
    await pop.send(*BODIES[:3])
    async with pop.member(handler) as one:
        await eventually(lambda: one.topic().received == 3, "all are received")
        address, client_id = pop.rocketmq.broker.address, one.client.client_id
        info = await consumer_running_info(pop.client.remoting, address, GROUP, client_id)
        handler.release.set()
    assert [queue.queue_id for queue in info.mq_pop_table] == [-1]
    [popped] = info.mq_pop_table.values()
    assert (popped.wait_ack_count, popped.dropped) == (3, False)
    assert popped.last_pop_timestamp > 0


async def test_a_broker_of_rocketmq_4_fails_the_group_with_an_instruction(broker: ScriptedBroker, seen: Seen) -> None:
    broker.create_topic(TOPIC)
    remark = " request type 400 not supported"
    broker.peer.on(RequestCode.QUERY_ASSIGNMENT, Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
    with pytest.raises(ExceptionGroup) as raised:
        async with member(broker.peer.address, seen, consume_mode="pop") as one:
            await asyncio.wait((one.task,))
    error = raised.value.exceptions[0]
    assert isinstance(error, PopNotSupportedError)
    assert "consume_mode: concurrently" in str(error)
    assert one.consumer.snapshot().state == "failed"
