"""Pull mode: the results of polls, the offsets that commits store, and assignments."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rmqd import MessageQueue, PullConsumer
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import (
    FilterRefusedError,
    NameServerError,
    PullConsumerError,
    RouteNotFoundError,
    SettingError,
)
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.test_pull_consumer import consumer, offsets, polled

pytestmark = pytest.mark.usefixtures("unpaced")


async def test_rare_commits_do_not_block_polls(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """A returned message leaves the cache, so neither the count nor the span of the thresholds ends the polls."""
    await broker.store(queue, *[b"x"] * 2200)
    async with consumer(broker, pull_batch_size=1000) as one:
        assert offsets(await polled(one, 2200)) == [*range(2200)]
        await one.commit()
    assert broker.offsets[GROUP, queue] == 2200


@pytest.mark.parametrize("auto_commit", [False, True])
async def test_a_seek_commits_with_auto_commit_only(
    broker: ScriptedBroker, queue: MessageQueue, auto_commit: bool
) -> None:
    """Otherwise neither the first pull nor the close commits."""
    await broker.store(queue, *[b"x"] * 9)
    async with consumer(broker, auto_commit=auto_commit) as one:
        await one.seek(queue, 7)
        assert offsets(await polled(one, 2)) == [7, 8]
        if not auto_commit:
            await one.seek_to_last(queue)
    assert broker.offsets[GROUP, queue] == (9 if auto_commit else 0)


async def test_only_an_offset_of_the_queue_is_committed(broker: ScriptedBroker, queue: MessageQueue) -> None:
    await broker.store(queue, *[b"x"] * 9)
    async with consumer(broker) as one:
        for offset in (10, -1, True, 2.5, "5", None):
            with pytest.raises(PullConsumerError, match=r"is not an offset of .*; expected 0 to 9"):
                await one.commit({queue: offset})  # type: ignore[dict-item]
        await one.commit({queue: 9})
    assert broker.offsets[GROUP, queue] == 9


async def test_an_interrupted_close_is_finished_by_the_next_call(broker: ScriptedBroker, queue: MessageQueue) -> None:
    async with consumer(broker) as one:
        ending = asyncio.create_task(one.close())
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        with pytest.raises(PullConsumerError, match="the consumer is closed"):
            await polled(one, 1)


@pytest.mark.parametrize("auto_commit", [False, True])
async def test_a_queue_that_is_assigned_again_continues(broker: ScriptedBroker, auto_commit: bool) -> None:
    """At the first message that no poll returned, whatever was cached."""
    first, second = broker.create_topic(TOPIC, 2)
    await broker.store(first, *[b"x"] * 5)
    settings: dict[str, Any] = {"consume_from_where": "first_offset", "auto_commit": auto_commit}
    async with consumer(broker, subscribed=False, **settings) as one:
        await one.assign([first])
        assert offsets(await polled(one, 2)) == [0, 1]
        await one.assign([first, second])
        assert offsets(await polled(one, 3)) == [2, 3, 4]
        await one.commit()
        assert broker.offsets[GROUP, first] == 5


async def test_subscriptions_can_be_added_and_removed(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """Without a subscription the consumer leaves the group."""
    [other] = broker.create_topic("other")
    async with consumer(broker) as one:
        await one.subscribe("other")
        await broker.store(other, b"y")
        assert [message.topic for message in await polled(one, 1)] == ["other"]
        await one.unsubscribe("other")
        assert await one.assignment() == [queue]
        await one.unsubscribe(TOPIC)
        assert not broker.members[GROUP]
        with pytest.raises(PullConsumerError, match=r"call subscribe\(topic\) or assign\(queues\) first"):
            await one.poll()
    with pytest.raises(PullConsumerError, match="the consumer is closed"):
        await one.poll()


REFUSED = Reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "Encountered")


@pytest.mark.parametrize("ends_with", [FilterRefusedError, TimeoutError])
async def test_after_a_failed_subscribe_the_earlier_subscriptions_are_read(
    broker: ScriptedBroker, queue: MessageQueue, ends_with: type[Exception]
) -> None:
    """Even if the program cancelled it. A paused queue stays paused."""
    broker.peer.on(RequestCode.CHECK_CLIENT_CONFIG, REFUSED if ends_with is FilterRefusedError else None)
    [other] = broker.create_topic("other")
    async with consumer(broker) as one:
        await one.subscribe("other")
        await one.pause([other])
        with pytest.raises(ends_with):
            await asyncio.wait_for(one.subscribe(TOPIC, {"sql": "a > 1"}), 0.5 if ends_with is TimeoutError else 30)
        assert await one.assignment() == [other, queue]
        await broker.store(other, b"x")
        await broker.store(queue, b"y")
        assert [message.body for message in await one.poll()] == [b"y"]
        assert await one.poll(timeout=0.05) == []


async def test_after_a_failed_assign_the_earlier_queues_keep_their_positions(broker: ScriptedBroker) -> None:
    broker.peer.on(RequestCode.CHECK_CLIENT_CONFIG, REFUSED)
    first, second = broker.create_topic(TOPIC, 2)
    await broker.store(first, *[b"x"] * 5)
    async with consumer(broker, subscribed=False, consume_from_where="first_offset") as one:
        await one.assign([first])
        assert offsets(await polled(one, 2)) == [0, 1]
        with pytest.raises(FilterRefusedError):
            await one.assign([first, second], {"sql": "a > 1"})
        assert await one.assignment() == [first]
        assert offsets(await polled(one, 3)) == [2, 3, 4]


async def test_a_time_is_looked_up_in_its_zone(broker: ScriptedBroker, queue: MessageQueue) -> None:
    await broker.store(queue, b"x", b"y", store_timestamp=1_700_000_000_000)
    async with consumer(broker, subscribed=False) as one:
        assert await one.offset_for_time(queue, datetime.fromtimestamp(1_700_000_000, UTC)) == 0
        assert await one.offset_for_time(queue, datetime.fromtimestamp(1_700_000_001, UTC)) == 2
        with pytest.raises(SettingError, match="has no time zone"):
            await one.offset_for_time(queue, datetime.fromisoformat("2026-01-01"))


@pytest.mark.usefixtures("hasty")
async def test_an_error_that_prevents_polls_is_raised(broker: ScriptedBroker, queue: MessageQueue) -> None:
    async with consumer(broker, subscribed=False) as one:
        with pytest.raises(RouteNotFoundError, match=r"no route for topic none.*otherwise create it"):
            await one.subscribe("none")
        broker.create_topic("closed", 0)
        with pytest.raises(PullConsumerError, match="closed is not readable; allow reading: `mqadmin"):
            await one.subscribe("closed")
        await one.subscribe(TOPIC)
        refusal = Reply(ResponseCode.NO_PERMISSION, f"the topic[{TOPIC}] pulling message is forbidden")
        broker.answer_pull(queue, *[refusal] * 99)
        await broker.store(queue, b"x")
        with pytest.raises(PullConsumerError, match=r"is forbidden; permit reading the topic .* updateTopicPerm"):
            await polled(one, 99)
        broker.forget_answers(queue)
        await broker.store(queue, b"last")
        bodies: list[bytes] = []
        while b"last" not in bodies:
            with contextlib.suppress(PullConsumerError):  # until the next pull
                bodies += [message.body for message in await one.poll()]
    async with PullConsumer(GROUP, nameserver="127.0.0.1:1") as one:
        with pytest.raises(NameServerError, match=r"127\.0\.0\.1:1"):
            await one.subscribe(TOPIC)


async def test_broadcasting_consumers_keep_their_offsets_in_a_file(
    broker: ScriptedBroker, queue: MessageQueue, tmp_path: Path
) -> None:
    """`committed` reads them there, also before a subscribe."""
    settings: dict[str, Any] = {"message_model": "broadcasting", "state_dir": str(tmp_path)}
    async with consumer(broker, **settings, consume_from_where="first_offset") as one:
        await broker.store(queue, b"x", b"y")
        await polled(one, 2)
        await one.commit({queue: 1})
    async with consumer(broker, subscribed=False, **settings) as one:
        assert await one.committed(queue) == 1
        with pytest.raises(RouteNotFoundError):
            await one.committed(MessageQueue("other", "a", 0))
        await one.subscribe(TOPIC)
        assert offsets(await polled(one, 1)) == [1]
    assert broker.commits == []
    assert not broker.peer.got(RequestCode.QUERY_CONSUMER_OFFSET)


async def test_a_queue_that_the_broker_does_not_have_is_an_error(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """Before a subscribe and after it. A mistyped number looked like a group without an offset."""
    unknown = MessageQueue(queue.topic, queue.broker_name, 9)
    async with consumer(broker, subscribed=False) as one:
        for _ in range(2):
            for call in (one.committed(unknown), one.offset_for_time(unknown, datetime(2026, 1, 1, tzinfo=UTC))):
                with pytest.raises(PullConsumerError, match=r"there is no queue .*9; queues"):
                    await call
            await one.subscribe(TOPIC)


async def test_two_consumers_cannot_be_the_same_member(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """Both would get all queues. Consumers that only assign queues are not members."""
    async with contextlib.AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(consumer(broker, subscribed=False, instance_name="report")) for _ in "12"
        ]
        await first.subscribe(TOPIC)
        with pytest.raises(PullConsumerError, match=f"is the member report of {GROUP}, and both would get all queues"):
            await second.subscribe(TOPIC)
        await second.assign([queue])
        await second.close()
        await first.close()
        async with consumer(broker, instance_name="report"):
            pass


@pytest.mark.parametrize("group", [None, 3, ["g"]])
def test_a_group_is_text(group: Any) -> None:
    with pytest.raises(SettingError, match="is not text; expected the name of a consumer group"):
        PullConsumer(group, nameserver="127.0.0.1:1")


async def test_a_filter_that_matches_no_message_causes_a_warning(broker: ScriptedBroker) -> None:
    broker.create_topic(TOPIC)
    async with consumer(broker, subscribed=False) as one:
        with pytest.warns(UserWarning, match=r"'a or b' matches no message, .*; expected \"a \|\| b\"") as warned:
            await one.subscribe(TOPIC, "a or b")
    assert [warning.filename for warning in warned] == [__file__]
