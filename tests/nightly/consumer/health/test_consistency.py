"""Differences between the members of a group, as a scripted broker and the other members report them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.health.group_problems import MemberDifference, model_difference, subscription_differences
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo
from rmqd.wire.bodies.heartbeat_data import SubscriptionData, sql_subscription, tag_subscription
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.health.test_consistency import OTHER, US, View, problem, subscribed, view
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen

__all__ = ["view"]


def test_different_subscriptions_are_found() -> None:
    for theirs, ours, text in [
        ("a", "a || b", "subscribe to t by TAG 'a', this one by TAG 'a || b'"),
        ("*", "a", "subscribe to t by TAG '*', this one by TAG 'a'"),
        ("a > 1", "*", "subscribe to t by SQL92 'a > 1', this one by TAG '*'"),
    ]:
        make = sql_subscription if ">" in theirs else tag_subscription
        [found] = subscription_differences(
            subscribed(make("t", theirs, 1)), subscribed(tag_subscription("t", ours, 1)), US
        )

        assert found == MemberDifference("subscription_mismatch", "t", text)


def test_a_different_message_model_is_found() -> None:
    assert not list(model_difference("CLUSTERING", "CLUSTERING", US))
    assert not list(model_difference(None, "CLUSTERING", US))
    [found] = model_difference("BROADCASTING", "CLUSTERING", US)
    assert found.cause == "mode_mismatch"


async def test_the_settings_of_all_groups_are_requested_only_once(
    view: View, broker: ScriptedBroker, seen: Seen
) -> None:
    """The response is large in a large cluster, so it is not requested again every minute if it is good."""
    table = SubscriptionGroupWrapper({GROUP: SubscriptionGroupConfig(group_name=GROUP)})
    broker.peer.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Reply(body=table.to_json()))
    async with member(broker.peer.address, seen) as m:
        await view.looked(6)
        assert len(broker.peer.got(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)) == 1
        assert not m.consumer.snapshot().problems


async def test_the_subscription_that_a_member_reports_itself_is_compared(view: View, seen: Seen) -> None:
    """A broker keeps only the newer of two subscriptions: ours, if this member joined later."""
    view.join()
    view.info = ConsumerRunningInfo({}, (tag_subscription(TOPIC, "a || b", 1),))
    async with member(view.broker.peer.address, seen) as m:
        evidence = await problem(m, "subscription_mismatch")
    assert f"member {OTHER}" in evidence


@pytest.mark.parametrize("way", ["model", "consume_type", "order"])
async def test_a_different_mode_is_reported(view: View, seen: Seen, way: str) -> None:
    """Another member uses broadcasting, pull consumption or orderly consumption."""
    view.join()
    match way:
        case "model":
            view.model = "BROADCASTING"
        case "consume_type":
            view.consume_type = "CONSUME_ACTIVELY"
        case _:
            view.info = ConsumerRunningInfo({"PROP_CONSUMEORDERLY": "true"}, tuple(view.table.values()))
    async with member(view.broker.peer.address, seen) as m:
        await problem(m, "mode_mismatch")


async def test_a_second_member_with_our_client_id_is_reported_when_it_joins(
    view: View, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's notification is enough: the next regular check may be a minute away."""
    monkeypatch.setattr("rmqd.consumer.health.consistency.CHECK_INTERVAL_SECONDS", 3600.0)
    monkeypatch.setattr("rmqd.client.instance.make_client_id", lambda *_: "10.0.0.1@7")
    async with member(view.broker.peer.address, seen) as m:
        await view.looked(2)
        view.join(m.client.client_id, "10.0.0.7:1234")
        group = {"consumerGroup": GROUP}
        await view.broker.peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, group, oneway=True)
        assert "10.0.0.7:1234" in await problem(m, "client_id_conflict")


async def test_a_refused_query_changes_no_problem(view: View, seen: Seen) -> None:
    """The problem neither ends nor starts again."""
    view.join()
    view.table = replace_topic(view.table)
    async with member(view.broker.peer.address, seen) as m:
        await problem(m, "subscription_mismatch")
        view.broker.peer.on(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, Reply(ResponseCode.NO_PERMISSION, "not for clients")
        )
        asked = len(view.broker.peer.got(RequestCode.GET_CONSUMER_CONNECTION_LIST))
        await view.broker.peer.received(RequestCode.GET_CONSUMER_CONNECTION_LIST, asked + 8)
        await asyncio.sleep(0)
        assert m.consumer.snapshot().problems


def replace_topic(table: dict[str, SubscriptionData]) -> dict[str, SubscriptionData]:
    """The same subscriptions with another expression."""
    return {topic: replace(data, sub_string="z", tags_set=frozenset({"z"})) for topic, data in table.items()}
