"""How the members of a group consume, as a scripted broker and the other members tell it."""

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


def test_other_messages_are_a_difference() -> None:
    for theirs, ours, text in [
        ("a", "a || b", "subscribe to TAG 'a' of t, this one to TAG 'a || b'"),
        ("*", "a", "subscribe to TAG '*' of t, this one to TAG 'a'"),
        ("a > 1", "*", "subscribe to SQL92 'a > 1' of t, this one to TAG '*'"),
    ]:
        make = sql_subscription if ">" in theirs else tag_subscription
        [found] = subscription_differences(
            subscribed(make("t", theirs, 1)), subscribed(tag_subscription("t", ours, 1)), US
        )

        assert found == MemberDifference("subscription_mismatch", "t", text)


def test_another_message_model_is_a_difference() -> None:
    assert not list(model_difference("CLUSTERING", "CLUSTERING", US))
    assert not list(model_difference(None, "CLUSTERING", US))
    [found] = model_difference("BROADCASTING", "CLUSTERING", US)
    assert found.cause == "mode_mismatch"


async def test_whoever_may_not_ask_for_one_group_asks_for_all_once(
    view: View, broker: ScriptedBroker, seen: Seen
) -> None:
    """The answer is large in a large cluster, so a good one is not asked for every minute."""
    table = SubscriptionGroupWrapper({GROUP: SubscriptionGroupConfig(group_name=GROUP)})
    broker.peer.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Reply(body=table.to_json()))
    async with member(broker.peer.address, seen) as m:
        await view.looked(6)
        assert len(broker.peer.got(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)) == 1
        assert not m.consumer.snapshot().problems


async def test_what_a_member_says_itself_counts_where_the_broker_only_knows_us(view: View, seen: Seen) -> None:
    """Of two opinions a broker keeps the newer one: ours, for a member that came later."""
    view.join()
    view.info = ConsumerRunningInfo({}, (tag_subscription(TOPIC, "a || b", 1),))
    async with member(view.broker.peer.address, seen) as m:
        evidence = await problem(m, "subscription_mismatch")
    assert f"member {OTHER}" in evidence


@pytest.mark.parametrize("way", ["model", "consume_type", "order"])
async def test_another_mode_is_told(view: View, seen: Seen, way: str) -> None:
    """Broadcasting, a pull consumer, or orderly consumption in one group with us."""
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


async def test_a_second_member_with_our_client_id_is_told_when_it_comes(
    view: View, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's notice is enough: the next regular look may be a minute away."""
    monkeypatch.setattr("rmqd.consumer.health.consistency.CHECK_INTERVAL_SECONDS", 3600.0)
    monkeypatch.setattr("rmqd.client.instance.make_client_id", lambda *_: "10.0.0.1@7")
    async with member(view.broker.peer.address, seen) as m:
        await view.looked(2)
        view.join(m.client.client_id, "10.0.0.7:1234")
        group = {"consumerGroup": GROUP}
        await view.broker.peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, group, oneway=True)
        assert "10.0.0.7:1234" in await problem(m, "client_id_conflict")


async def test_a_broker_that_does_not_tell_changes_nothing(view: View, seen: Seen) -> None:
    """The problem is neither over nor new."""
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
    """The same with another expression."""
    return {topic: replace(data, sub_string="z", tags_set=frozenset({"z"})) for topic, data in table.items()}
