"""PullConsumer: polls, commits, and queues that move between members."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rmqd import Message, MessageQueue, PullConsumer
from rmqd.codes import RequestCode
from rmqd.errors import (
    NameServerError,
    PullConsumerError,
    RemotingError,
    RmqdError,
    RouteNotFoundError,
    SettingError,
)
from rmqd.wire.bodies.heartbeat_data import HeartbeatData
from rmqd.wire.messages.properties import PullSysFlag
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.two_masters import Two
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("unpaced")


@contextlib.asynccontextmanager
async def consumer(broker: ScriptedBroker, *, subscribed: bool = True, **settings: Any) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(GROUP, nameserver=broker.peer.address, **settings) as one:
        if subscribed:
            await one.subscribe(TOPIC)
        yield one


async def polled(one: PullConsumer, count: int) -> list[Message]:
    """Poll until `count` messages were returned."""
    messages: list[Message] = []
    while len(messages) < count:
        messages += await one.poll(max_messages=count - len(messages))
    return messages


def offsets(messages: list[Message]) -> list[int]:
    return [message.queue_offset for message in messages]


async def has(one: PullConsumer, queues: int) -> None:
    async def is_so() -> bool:
        return len(await one.assignment()) == queues

    await eventually(is_so, f"the consumer has {queues} queues")


async def test_commit_covers_returned_messages_and_close_commits_nothing(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    await broker.store(queue, *[b"x"] * 5)
    async with consumer(broker) as one:
        assert await one.assignment() == await one.queues(TOPIC) == [queue]
        assert offsets(await polled(one, 2)) == [0, 1]
        await one.commit()
        assert await one.committed(queue) == 2
        assert offsets(await polled(one, 3)) == [2, 3, 4]
        assert await one.poll(timeout=0) == []
    assert broker.offsets[GROUP, queue] == 2


@pytest.mark.parametrize("is_left_by_error", [False, True])
async def test_auto_commit_covers_the_messages_of_earlier_polls(
    broker: ScriptedBroker, queue: MessageQueue, is_left_by_error: bool
) -> None:
    """The end of the block commits the last poll too, unless an exception ends the block."""
    await broker.store(queue, *[b"x"] * 5)
    with contextlib.suppress(ZeroDivisionError):
        async with consumer(broker, auto_commit=True) as one:
            await polled(one, 2)
            assert offsets(await one.poll(max_messages=2)) == [2, 3]
            if is_left_by_error:
                raise ZeroDivisionError
    assert broker.offsets[GROUP, queue] == (2 if is_left_by_error else 4)


async def test_seek_discards_cached_messages_and_commit_may_go_back(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    await broker.store(queue, *[b"x"] * 9)
    async with consumer(broker) as one:
        await polled(one, 1)
        await one.seek(queue, 7)
        assert offsets(await polled(one, 2)) == [7, 8]
        await one.commit()
        await one.seek_to_first(queue)
        assert broker.offsets[GROUP, queue] == 9
        assert offsets(await polled(one, 1)) == [0]
        await one.commit()
        assert broker.offsets[GROUP, queue] == 1
        await one.commit({queue: 5})
        assert await one.committed(queue) == 5
        await one.seek_to_last(queue)
        assert await one.poll(timeout=0.05) == []
        with pytest.raises(PullConsumerError, match="10 is not an offset of t1@a:0; expected 0 to 9"):
            await one.seek(queue, 10)
        with pytest.raises(PullConsumerError, match="other@a:0 is not assigned"):
            await one.commit({MessageQueue("other", "a", 0): 1})


async def test_a_paused_queue_keeps_its_messages_until_it_is_resumed(broker: ScriptedBroker) -> None:
    first, second = broker.create_topic(TOPIC, 2)
    await broker.store(first, *[b"x"] * 3)
    async with consumer(broker) as one:
        await polled(one, 1)
        await one.pause([first])
        await broker.store(second, b"y")
        assert [message.queue_id for message in await one.poll()] == [1]
        assert await one.poll(timeout=0.05) == []
        await one.subscribe(TOPIC, "*")
        assert [message.queue_id for message in await one.poll()] == [1]
        assert await one.poll(timeout=0.05) == []
        await one.resume([first])
        assert offsets(await polled(one, 3)) == [0, 1, 2]


async def test_assigned_queues_are_read_without_joining_the_group(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats name no group, each pull carries the filter, and only the program commits."""
    monkeypatch.setattr("rmqd.consumer.rebalance.membership.POLL_SECONDS", 0.01)
    first, second = broker.create_topic(TOPIC, 2)
    await broker.store(first, b"x", b"y", properties={"TAGS": "a"})
    broker.offsets[GROUP, first] = 1
    async with consumer(broker, subscribed=False, consume_from_where="first_offset") as one:
        await one.assign([first, second], "a || b")
        assert offsets(await polled(one, 1)) == [1]
        await broker.store(second, b"z", properties={"TAGS": "b"})
        assert offsets(await polled(one, 1)) == [0]
        assert all(pull.sys_flag & PullSysFlag.SUBSCRIPTION and pull.subscription == "a || b" for pull in broker.pulls)
        await one.assign([second])
        assert await one.assignment() == [second]
        assert await one.poll(timeout=0.05) == []
        assert (GROUP, second) not in broker.offsets
        await one.commit()
        with pytest.raises(PullConsumerError, match="has assigned queues; to subscribe, create another consumer"):
            await one.subscribe(TOPIC)
    heartbeats = [HeartbeatData.from_json(one.body) for one in broker.peer.got(RequestCode.HEART_BEAT)]
    assert all(not one.consumer_data_set for one in heartbeats)
    assert not broker.peer.got(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    assert broker.commits == [(second, 1)]
    async with consumer(broker) as one:
        with pytest.raises(
            PullConsumerError, match=f"subscribes to {TOPIC}; to assign queues, create another consumer"
        ):
            await one.assign([first])


@pytest.mark.parametrize("auto_commit", [False, True])
async def test_queues_move_to_a_new_member_after_the_program_finished_its_messages(
    broker: ScriptedBroker, auto_commit: bool
) -> None:
    """They return when the member leaves. Each message is handled exactly once."""
    queues, seen = broker.create_topic(TOPIC, 2), Seen()
    for queue in queues:
        await broker.store(queue, *[b"%d-%d" % (queue.queue_id, number) for number in range(5)])
    async with consumer(broker, auto_commit=auto_commit) as one:
        bodies = [message.body for message in await polled(one, 6)]
        async with member(broker.peer.address, seen) as other:
            await eventually(lambda: len(broker.members[GROUP]) == 2, "the other member has joined")
            await has(one, 1)
            assert seen.attempts == []
            if not auto_commit:
                await one.commit()
            while len(bodies) + len(seen.attempts) < 10:
                bodies += [message.body for message in await one.poll(timeout=0.05)]
            await one.commit()
            await eventually(other.owned, "the other member has the queue")
        await has(one, 2)
        await broker.store(queues[0], b"new")
        await broker.store(queues[1], b"new")
        assert len(await polled(one, 2)) == 2
    handled = bodies + [attempt.body for attempt in seen.attempts]
    assert sorted(handled) == [b"%d-%d" % (queue.queue_id, number) for queue in queues for number in range(5)]


async def test_a_wrong_parameter_is_named(broker: ScriptedBroker, queue: MessageQueue) -> None:
    async with consumer(broker, subscribed=False) as one:
        await one.assign([queue])
        wrong: Any
        for wrong in (3, None, "one", ["orders"]):
            if wrong is not None:
                with pytest.raises(SettingError, match=r"is not valid; expected \{queue: offset\}, or nothing"):
                    await one.commit(wrong)
            for ask in (one.committed, one.seek_to_first, one.seek_to_last):
                with pytest.raises(SettingError, match="is not valid; expected a queue, such as queues"):
                    await ask(wrong)
            for change in (one.assign, one.pause, one.resume):
                with pytest.raises(SettingError, match=r"is not valid; expected a (list of queues|queue), such as"):
                    await change(wrong)
            for timeout, count in ((wrong, 1), (0.0, wrong)) if wrong != 3 else ():
                with pytest.raises(SettingError, match="is not valid; expected a number of"):
                    await one.poll(timeout, count)
            with pytest.raises(SettingError, match="is not valid; expected a datetime with a time zone"):
                await one.offset_for_time(queue, wrong)
        for call in (one.subscribe, one.unsubscribe, one.queues):
            for wrong in (3, None, [TOPIC]):
                with pytest.raises(SettingError, match="is not valid; expected the name of a topic"):
                    await call(wrong)
        with pytest.raises(SettingError, match="expected timeout >= 0"):
            await one.poll(float("nan"))


async def test_network_errors_name_the_address_and_the_next_step(two: Two) -> None:
    at = two.name_server.address
    queue = MessageQueue(TOPIC, two.b.name, 0)
    async with PullConsumer(GROUP, nameserver=at) as one:
        await one.assign([queue])
        await two.b.peer.down()
        tested = f"`rmqd topics show {TOPIC} --nameserver {at}` tests it"
        for work in (one.commit({queue: 0}), one.seek_to_first(queue), one.committed(queue)):
            with pytest.raises(RemotingError, match=f"{two.b.peer.address}.*; start the broker, or check.*{tested}"):
                await work
        await two.name_server.down()
        with pytest.raises(NameServerError, match=f"{at}.*; start a name server, or check.*{tested}"):
            await one.queues(TOPIC)


async def test_two_broadcasting_consumers_do_not_share_an_offset_file(broker: ScriptedBroker, tmp_path: Path) -> None:
    """Each would overwrite the other's offsets. The second consumer may subscribe after the first has ended."""
    settings: dict[str, Any] = {"message_model": "broadcasting", "state_dir": str(tmp_path)}
    broker.create_topic(TOPIC)
    async with consumer(broker, subscribed=False, **settings) as second:
        async with consumer(broker, **settings):
            with pytest.raises(PullConsumerError, match=rf"another consumer .* broadcasts to {GROUP}.* offsets in /"):
                await second.subscribe(TOPIC)
            async with consumer(broker, **settings | {"state_dir": str(tmp_path / "other")}):
                pass
        await second.subscribe(TOPIC)


async def test_a_broadcasting_consumer_releases_its_file_when_its_event_loop_ends(
    broker: ScriptedBroker, tmp_path: Path
) -> None:
    """A failed notebook cell does not close its consumers."""
    settings: dict[str, Any] = {"message_model": "broadcasting", "state_dir": str(tmp_path)}
    broker.create_topic(TOPIC)

    async def subscribe() -> None:
        one = await PullConsumer(GROUP, nameserver=broker.peer.address, **settings).__aenter__()
        await one.subscribe(TOPIC)

    await asyncio.to_thread(asyncio.run, subscribe())
    async with consumer(broker, **settings):
        pass


async def test_errors_name_topics_without_the_namespace(broker: ScriptedBroker) -> None:
    async with consumer(broker, subscribed=False, namespace="ns") as one:
        with pytest.raises(RouteNotFoundError) as missing:
            await one.subscribe("nothing")
    assert "nothing" in str(missing.value)
    assert "ns%" not in str(missing.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nameservr": "a:1"}, "unknown keyword nameservr; expected one of auto_commit, .*; did you mean nameserver"),
        ({}, "nameserver: missing; expected host:port"),
        ({"pull_batch_size": 0}, "pull_batch_size: 0 is out of range; expected a whole number from 1 to 1024"),
        ({"tls": {"enable": True}}, "tls.enable: unknown key"),
        ({"auto_commit": 1}, "auto_commit: 1 is neither True nor False"),
        ({"consume_timestamp": datetime.fromisoformat("2026-01-01")}, "consume_timestamp: .* has no time zone"),
    ],
)
def test_a_wrong_keyword_is_named(settings: dict[str, Any], said: str) -> None:
    if settings and "nameservr" not in settings:
        settings["nameserver"] = "127.0.0.1:1"
    with pytest.raises((RmqdError, TypeError), match=said):
        PullConsumer(GROUP, **settings)


async def test_a_cancelled_subscribe_keeps_the_earlier_subscription(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    """A timeout or Ctrl-C may cancel it while the consumer leaves the group."""
    await broker.store(queue, b"x")
    async with consumer(broker) as one:
        subscribing = asyncio.create_task(one.subscribe(TOPIC, "a"))
        while not broker.peer.got(RequestCode.UNREGISTER_CLIENT):  # noqa: ASYNC110  the very next step is what matters
            await asyncio.sleep(0)
        subscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscribing
        assert await one.assignment() == [queue]
        assert offsets(await polled(one, 1)) == [0]


async def test_methods_of_an_ended_consumer_report_that_it_has_ended(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    """A program that calls asyncio.run twice uses the consumer of an earlier event loop."""
    one = PullConsumer(GROUP, nameserver=broker.peer.address)
    await asyncio.to_thread(asyncio.run, one.subscribe(TOPIC))
    for call in (one.queues(TOPIC), one.committed(queue), one.poll(), one.commit(), one.subscribe(TOPIC)):
        with pytest.raises(PullConsumerError, match="the consumer has ended; create another consumer"):
            await call
    await one.close()
    for call in (one.queues(TOPIC), one.assignment(), one.unsubscribe(TOPIC)):
        with pytest.raises(PullConsumerError, match="the consumer is closed; create another consumer"):
            await call


@pytest.mark.parametrize("code", [RequestCode.GET_MAX_OFFSET, RequestCode.GET_ROUTEINFO_BY_TOPIC])
async def test_close_ends_a_waiting_request(broker: ScriptedBroker, queue: MessageQueue, code: RequestCode) -> None:
    """A CancelledError would end the task as if the program had cancelled it."""
    async with consumer(broker) as one:
        count = len(broker.peer.got(code))
        broker.peer.on(code, None)
        asked = asyncio.create_task(one.commit({queue: 0}) if code is RequestCode.GET_MAX_OFFSET else one.queues(TOPIC))
        await broker.peer.received(code, count + 1)
        await one.close()
        with pytest.raises(PullConsumerError, match="the consumer is closed; create another consumer"):
            await asked


def test_a_wrong_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "junk")
    with pytest.raises(SettingError, match=r"^\$NAMESRV_ADDR: nameserver: 'junk' is not host:port"):
        PullConsumer(GROUP)


@pytest.mark.parametrize("awaited", [RequestCode.UNREGISTER_CLIENT, RequestCode.GET_ROUTEINFO_BY_TOPIC])
async def test_close_during_another_call_ends_both(
    broker: ScriptedBroker, queue: MessageQueue, awaited: RequestCode
) -> None:
    """A signal handler closes the consumer while the program subscribes, or leaves the `with` block."""
    async with consumer(broker) as one:
        count = len(broker.peer.got(awaited))
        subscribing = asyncio.create_task(one.subscribe(TOPIC, "a"))
        while len(broker.peer.got(awaited)) == count:  # noqa: ASYNC110  the very next step is what matters
            await asyncio.sleep(0)
        await asyncio.gather(one.close(), one.close())
        with pytest.raises(PullConsumerError, match="the consumer is closed; create another consumer"):
            await subscribing
        assert not [task for task in asyncio.all_tasks() if GROUP in task.get_name()]
