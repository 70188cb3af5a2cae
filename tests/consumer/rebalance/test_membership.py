"""A group's members: the lists of brokers, and polls if brokers send no notifications."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import cast
from unittest.mock import AsyncMock

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.context import GroupContext
from rmqd.consumer.rebalance.membership import ChangeNotifications, MemberList
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group_headers import GetConsumerListByGroupRequestHeader
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC, group_options
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.two_masters import Two
from tests.seen import Seen
from tests.waiting import eventually

LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP


def group(clock: ManualClock) -> tuple[GroupContext, ChangeNotifications]:
    """A group whose brokers may notify it, and which may poll them."""
    context = SimpleNamespace(options=group_options(), clock=clock, max_notice_delay_seconds=0.0)
    return cast(GroupContext, context), ChangeNotifications(cast(GroupContext, context))


def test_a_change_without_a_notification_shows_that_brokers_do_not_notify(clock: ManualClock) -> None:
    """A new member must wait longer for an owner that notices it only at the next poll."""
    context, notifications = group(clock)
    assert not notifications.on_member_list(["a"])
    for members in (["a", "b"], ["a"]):
        notifications.on_notification()
        assert notifications.on_member_list(members)
        assert context.max_notice_delay_seconds == 0.0
    assert not notifications.on_member_list(["a"])
    assert context.max_notice_delay_seconds == 0.0
    assert notifications.on_member_list(["a", "c"])
    assert context.max_notice_delay_seconds == 2.0


async def test_members_are_polled_every_two_seconds_without_notifications(clock: ManualClock) -> None:
    start, polled_at = clock.now, list[float]()

    async def poll() -> bool:
        polled_at.append(clock.now - start)
        return len(polled_at) == 3

    waiting = asyncio.create_task(group(clock)[1].wait(asyncio.Event(), 20.0, poll))
    await clock.until(waiting.done, "the third poll finds a change")
    assert polled_at == [2.0, 4.0, 6.0]


@pytest.mark.parametrize(
    ("model", "notifies", "seconds"),
    [("clustering", True, 20.0), ("broadcasting", False, 20.0), ("clustering", False, 2.0)],
)
async def test_members_are_not_polled_if_brokers_notify_or_a_check_is_due_anyway(
    clock: ManualClock, model: str, notifies: bool, seconds: float
) -> None:
    context = SimpleNamespace(options=group_options(message_model=model), clock=clock, max_notice_delay_seconds=0.0)
    notifications = ChangeNotifications(cast(GroupContext, context))
    if notifies:
        notifications.on_notification()
    waiting = asyncio.create_task(notifications.wait(asyncio.Event(), seconds, AsyncMock(side_effect=AssertionError)))
    await clock.until(waiting.done, "the time is over")
    await waiting


async def test_a_broker_that_does_not_know_the_group_is_passed_over(two: Two) -> None:
    """Brokers are queried in a random order."""
    async with two.member(Seen()) as m:
        await eventually(lambda: len(m.owned()) == 1, "it runs")
        own_id = m.client.client_id
        two.a.peer.on(LIST, Reply(body=b'{"consumerIdList":[]}'))
        two.b.peer.on(LIST, Reply(body=json.dumps({"consumerIdList": [own_id, "other"]}).encode()))
        for _ in range(20):
            assert await MemberList(m.consumer.context).client_ids_for(TOPIC) == [own_id, "other"]
        assert [problem.cause for problem in m.consumer.context.problems] == ["group_unknown"]
        two.a.peer.on(LIST, Reply(ResponseCode.SYSTEM_ERROR, "not now"))
        for _ in range(20):
            assert await MemberList(m.consumer.context).client_ids_for(TOPIC) == [own_id, "other"]


async def test_a_broker_that_forgot_this_member_gets_a_heartbeat(
    broker: ScriptedBroker, seen: Seen, clock: ManualClock
) -> None:
    broker.create_topic(TOPIC)
    async with member(broker.peer.address, seen, clock=clock) as m:
        await clock.until(lambda: m.owned() == {(TOPIC, 0)}, "it runs")
        await clock.advance(1)
        broker.members[GROUP].remove(m.client.client_id)
        assert await MemberList(m.consumer.context).client_ids_for(TOPIC) == [m.client.client_id]


async def test_a_broker_that_has_just_returned_is_not_believed_about_missing_members(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """It knows only members that sent a heartbeat since. The others send one within seconds, and keep their queues."""
    broker.create_topic(TOPIC, 4)
    broker.members[GROUP].append("~other@1")
    async with member(broker.peer.address, seen, clock=flowing, heartbeat_seconds=0.3) as m:
        await eventually(lambda: m.owned() == {(TOPIC, 0), (TOPIC, 1)}, "it has its half")
        asked: list[str] = []

        def forgetful(command: RemotingCommand) -> Reply:
            header = GetConsumerListByGroupRequestHeader.from_ext_fields(command.ext_fields)
            asked.append(header.consumer_group)
            return broker._list(command)

        broker.members[GROUP].remove("~other@1")
        broker.peer.on(LIST, forgetful)
        broker.peer.cut()
        await broker.gain("nobody", "x")
        m.consumer.on_consumer_ids_changed()
        await eventually(lambda: len(asked) > 2, "it is queried again and again")
        assert m.owned() == {(TOPIC, 0), (TOPIC, 1)}
        await eventually(lambda: len(m.owned()) == 4, "the missing member no longer counts")
