"""A complete push consumer against a scripted broker: start, stop and counters."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.handler_api.batch import Batch, LoadedHandler
from rmqd.wire.message_queue import MessageQueue
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC, Blocked, group_options
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("unpaced")

RETRY = f"%RETRY%{GROUP}"


# --- start and stop


async def test_the_handler_is_started_before_the_first_message_and_stopped_after_the_last(
    broker: ScriptedBroker,
) -> None:
    """`start` and `stop` are called once each, and may be coroutines or plain functions."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"x")
    order: list[str] = []
    release = asyncio.Event()

    def start() -> None:
        assert not broker.peer.got(RequestCode.HEART_BEAT)
        order.append("start")

    async def handle(batch: Batch) -> None:
        order.append("begin")
        await release.wait()
        order.append("end")

    async def stop() -> None:
        order.append("stop")

    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
    consumer = PushConsumer(group_options(), LoadedHandler("h", handle, True, start, stop), client)
    assert consumer.snapshot().state == "starting"
    async with running(client.run()):
        task = asyncio.create_task(consumer.run())
        await eventually(lambda: order == ["start", "begin"], "the handler has the message")
        assert consumer.snapshot().ready
        consumer.stop(shutdown_timeout_seconds=5)
        await eventually(lambda: consumer.snapshot().state == "draining", "the consumer drains")
        release.set()
        await task
    assert order == ["start", "begin", "end", "stop"]
    assert consumer.snapshot().state == "stopped"
    assert broker.offsets[GROUP, queue] == 1


async def test_a_queue_with_an_end_offset_is_pulled_up_to_it(broker: ScriptedBroker) -> None:
    """Later messages are not pulled. If a pull response contains some, a hook must skip them."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, *(b"%d" % number for number in range(5)))
    handled: list[bytes] = []

    async def handle(batch: Batch) -> None:
        handled.append(batch[0].body)

    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
    options = group_options(consume_from_where="first_offset", pull_batch_size=1)
    consumer = PushConsumer(options, LoadedHandler("h", handle, True, None, None), client, ends={queue: 3})
    async with running(client.run()):
        task = asyncio.create_task(consumer.run())
        await eventually(lambda: len(handled) == 3, "the messages before the end are handled")
        other = broker.create_topic("other")  # a later request shows that the client sent no other pull
        await client.routes.lookup(other[0].topic)
        consumer.stop()
        await task
    assert handled == [b"0", b"1", b"2"]
    assert broker.offsets[GROUP, queue] == 3


async def test_a_handler_that_fails_to_start_ends_the_group(broker: ScriptedBroker) -> None:
    """The member has not joined yet. The snapshot has the reason."""
    broker.create_topic(TOPIC)

    def start() -> None:
        raise ConnectionError("no database")

    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
    consumer = PushConsumer(group_options(), LoadedHandler("h", print, False, start, None), client)
    async with running(client.run()):
        with pytest.raises(ConnectionError):
            await consumer.run()
    snapshot = consumer.snapshot()
    assert (snapshot.state, snapshot.failure) == ("failed", "ConnectionError: no database")
    assert not broker.peer.got(RequestCode.HEART_BEAT)


async def test_a_topic_that_is_created_later_is_consumed(broker: ScriptedBroker) -> None:
    """Until the topic has a route, the group is not ready and reports the reason."""
    bodies: list[bytes] = []

    async def handle(batch: Batch) -> None:
        bodies.append(batch[0].body)

    broker.create_topic(TOPIC)
    async with member(broker.peer.address, handle, subscriptions=[TOPIC, "later"]) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0)}, "the other topic is consumed")
        snapshot = m.consumer.snapshot()
        assert not snapshot.ready
        assert snapshot.not_ready_reason is not None
        assert "later" in snapshot.not_ready_reason
        [queue] = broker.create_topic("later")
        await broker.store(queue, b"first")
        await eventually(lambda: bodies == [b"first"], "the new topic is consumed")
        assert m.consumer.snapshot().ready


async def test_stop_waits_for_handlers_until_the_shutdown_timeout(broker: ScriptedBroker) -> None:
    """Finished messages are committed; the others will be redelivered."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, *[b"x"] * 5)

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 3:
            await asyncio.Event().wait()

    async with member(broker.peer.address, handle, persist_consumer_offset_interval_seconds=60) as m:
        await eventually(lambda: m.topic().handled["acked"] == 4, "all but one are handled")
        begin = time.monotonic()
        await m.stop(shutdown_timeout_seconds=0.3)
        assert time.monotonic() - begin > 0.25
        assert m.topic().duplicates == {"stopped": 1}
    assert broker.offsets[GROUP, queue] == 3


async def test_the_group_fails_when_all_handler_slots_hang(broker: ScriptedBroker, flowing: ManualClock) -> None:
    """The failure is named handler_hung. The messages are sent back, and the member leaves the group."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"x", b"x")
    let_go = threading.Event()

    def handle(batch: Batch) -> None:
        let_go.wait()

    with contextlib.suppress(ExceptionGroup):
        async with member(
            broker.peer.address, handle, is_async=False, clock=flowing, concurrency=2, consume_timeout_seconds=3.0
        ) as m:
            await eventually(m.task.done, "the group has ended")
            snapshot, handled = m.consumer.snapshot(), m.topic().handled
    let_go.set()
    assert (snapshot.state, snapshot.handler_hung) == ("failed", True)
    assert snapshot.failure is not None
    assert "handler_hung" in snapshot.failure
    assert handled["expired"] == 2
    assert m.task.exception() is not None
    assert len(broker.sent_back) == 2
    assert not broker.members[GROUP]


# --- counters


async def test_retried_messages_are_redelivered_and_counted_under_their_own_topics(broker: ScriptedBroker) -> None:
    """One retry topic serves all topics of a group."""
    broker.redelivers = True
    orders, bills = broker.create_topic("orders")[0], broker.create_topic("bills")[0]
    seen: list[tuple[str, int, MessageQueue]] = []

    async def handle(batch: Batch) -> None:
        [message] = batch
        seen.append((message.topic, message.reconsume_times, batch.message_queue))
        if message.reconsume_times < (2 if message.topic == "bills" else 1):
            raise RuntimeError("not yet")

    async with member(
        broker.peer.address,
        handle,
        subscriptions=["orders", "bills"],
        concurrency=1,
        persist_consumer_offset_interval_seconds=0.05,
    ) as m:
        await broker.store(orders, b"o")
        await broker.store(bills, b"b")
        retry = MessageQueue(RETRY, "a", 0)
        await broker.committed(GROUP, retry, 3)
        counts = {
            (topic.topic, topic.is_retry): (topic.received, topic.handled["acked"], topic.handled["retried"])
            for topic in m.consumer.snapshot().topics
        }
        [status] = [queue for queue in m.consumer.snapshot().queues if queue.is_retry]
    assert sorted(seen) == [
        ("bills", 0, bills),
        ("bills", 1, retry),
        ("bills", 2, retry),
        ("orders", 0, orders),
        ("orders", 1, retry),
    ]
    assert counts == {
        ("orders", False): (1, 0, 1),
        ("bills", False): (1, 0, 1),
        ("orders", True): (1, 1, 0),
        ("bills", True): (2, 1, 1),
    }
    assert status.topic == RETRY


async def test_a_snapshot_has_the_progress_of_each_queue(broker: ScriptedBroker) -> None:
    """Offsets, lag and age include waiting messages and messages in flight."""
    [queue] = broker.create_topic(TOPIC)
    stored_at = int(time.time() * 1000) - 60_000
    await broker.store(queue, *[b"x"] * 40, store_timestamp=stored_at)
    broker.offsets[GROUP, queue] = 4
    handle = Blocked()
    async with member(broker.peer.address, handle, pull_threshold_for_queue=20, pull_batch_size=30) as m:
        await eventually(lambda: (q := m.queue()) and q.state == "flow_controlled", "the queue is flow-controlled")
        status = m.queue()
        assert status is not None
        assert (status.committed, status.position, status.max, status.lag) == (4, 34, 40, 36)
        assert (status.cached, status.span) == (30, 29)
        assert status.cached_bytes > 30 * 91
        assert status.lag_seconds == pytest.approx(60, abs=5)
        handle.release.set()
        await eventually(lambda: (q := m.queue()) and q.lag == 0, "all messages are handled")
        status = m.queue()
        assert status is not None
        assert (status.cached, status.cached_bytes, status.lag_seconds, status.state) == (0, 0, 0.0, "waiting")
