"""Consistency checks of a group, against a scripted broker and the answers of other members."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.health.group_problems import subscription_differences
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo
from rmqd.wire.bodies.heartbeat_data import SubscriptionData, sql_subscription, tag_subscription
from rmqd.wire.bodies.stats_bodies import Connection, ConsumerConnection
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

US = "this one"
OTHER = "10.0.0.9@java"


def subscribed(*data: SubscriptionData) -> dict[str, SubscriptionData]:
    return {one.topic: one for one in data}


# --- differences of subscriptions


def test_spelling_and_version_of_a_filter_are_not_a_difference() -> None:
    for theirs, ours in [
        (tag_subscription("t", "a || b", 1), tag_subscription("t", " b||a ", 2)),
        (tag_subscription("t", "*", 1), tag_subscription("t", "", 2)),
        (sql_subscription("t", "a > 1", 1), sql_subscription("t", "a > 1", 2)),
    ]:
        assert not list(subscription_differences(subscribed(theirs), subscribed(ours), US))


def test_topics_that_only_one_side_has_are_differences_but_not_retry_topics() -> None:
    theirs = subscribed(tag_subscription("t1", "*", 1), tag_subscription("t2", "*", 1))
    ours = subscribed(
        tag_subscription("t1", "*", 1), tag_subscription("t3", "*", 1), tag_subscription("%RETRY%g", "*", 1)
    )

    assert [found.text for found in subscription_differences(theirs, ours, US)] == [
        "do not subscribe to t3, this one does",
        "subscribe to t2, this one does not",
    ]


# --- checks and reports


class View:
    """The answers of the broker and of the other member."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.connections: list[Connection] = []
        self.table = subscribed(tag_subscription(TOPIC, "*", 1))
        self.consume_type = "CONSUME_PASSIVELY"
        self.model = "CLUSTERING"
        self.info: ConsumerRunningInfo | None = None
        self.looks = 0
        broker.peer.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, self._connection)
        broker.peer.on(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info)

    def join(self, client_id: str = OTHER, address: str = "10.0.0.9:4711") -> None:
        self.connections.append(Connection(client_id, address, "JAVA", 1))

    async def looked(self, times: int) -> None:
        """Wait for `times` more checks."""
        wanted = self.looks + times
        await eventually(lambda: self.looks >= wanted, f"{times} more checks")

    def _connection(self, _: RemotingCommand) -> Reply:
        self.looks += 1
        own = [Connection(client_id, "127.0.0.1:1", "PYTHON", 1) for client_id in self.broker.members[GROUP]]
        view = ConsumerConnection((*own, *self.connections), self.table, self.consume_type, self.model)
        return Reply(body=view.to_json())

    def _running_info(self, command: RemotingCommand) -> Reply:
        assert command.ext_fields["clientId"] in {connection.client_id for connection in self.connections}
        if self.info is None:
            return Reply(ResponseCode.SYSTEM_ERROR, "no answer")
        return Reply(body=self.info.to_json())


@pytest.fixture
def view(broker: ScriptedBroker, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> View:
    """A broker with the topic, and frequent checks."""
    for name, seconds in {"CHECK_INTERVAL": 0.05, "RETRY_WITHOUT_BROKER": 0.02, "SECOND_CHECK_AFTER": 0.03}.items():
        monkeypatch.setattr(f"rmqd.consumer.health.consistency.{name}_SECONDS", seconds)
    return View(broker)


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    with capture_logs() as entries:
        yield entries


async def problem(m: Member, cause: str) -> str:
    """Wait for the group's problem and return its evidence."""
    await eventually(lambda: m.consumer.snapshot().problems, f"{cause} is reported")
    [found] = m.consumer.snapshot().problems
    assert found.cause == cause
    assert found.next
    return found.evidence


def settings(**values: Any) -> Reply:
    return Reply(body=SubscriptionGroupConfig(group_name=GROUP, **values).to_json())


SETTINGS: list[tuple[Reply, str, str]] = [
    # the command repeats the other settings, because mqadmin would reset them
    (
        settings(retry_queue_nums=0, retry_max_times=5),
        "retries_dropped",
        f"`mqadmin updateSubGroup -c CLUSTER -g {GROUP} -s true -m true -d true -q 1 -r 5 -i 0 -w 1 -a true`",
    ),
    (
        settings(consume_enable=False, consume_broadcast_enable=False),
        "consumption_disabled",
        f"`mqadmin updateSubGroup -c CLUSTER -g {GROUP} -s true -m true -d false -q 1 -r 16 -i 0 -w 1 -a true`",
    ),
    (Reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no group"), "group_unknown", f"-c CLUSTER -g {GROUP}`"),
]


@pytest.mark.parametrize(("answer", "cause", "step"), SETTINGS)
@pytest.mark.usefixtures("view")
async def test_broker_settings_that_harm_the_group_are_reported_with_a_fix(
    broker: ScriptedBroker, seen: Seen, answer: Reply, cause: str, step: str
) -> None:
    """A broker without a retry queue answers a send-back with success and drops the message."""
    broker.peer.on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, answer)
    async with member(broker.peer.address, seen) as m:
        await problem(m, cause)
        assert step in (m.consumer.snapshot().not_ready_reason or "")
        well = SubscriptionGroupConfig(group_name=GROUP)
        broker.peer.on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, Reply(body=well.to_json()))
        await eventually(lambda: m.consumer.snapshot().ready, "the problem is over")


@pytest.mark.usefixtures("view")
async def test_a_problem_ends_at_a_broker_that_only_returns_all_groups(broker: ScriptedBroker, seen: Seen) -> None:
    def all_groups(**values: Any) -> Reply:
        config = SubscriptionGroupConfig(group_name=GROUP, **values)
        return Reply(body=SubscriptionGroupWrapper({GROUP: config}).to_json())

    broker.peer.on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    broker.peer.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, all_groups(consume_enable=False))
    async with member(broker.peer.address, seen) as m:
        await problem(m, "consumption_disabled")
        broker.peer.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, all_groups())
        await eventually(lambda: m.consumer.snapshot().ready, "the problem has ended")


async def test_members_that_agree_are_not_a_problem(view: View, seen: Seen) -> None:
    """Nor is an old subscription at a broker without other members."""
    async with member(view.broker.peer.address, seen) as m:
        view.join()
        view.info = ConsumerRunningInfo({"PROP_CONSUMEORDERLY": "false"}, tuple(view.table.values()))
        await view.looked(6)
        view.connections.clear()
        view.table = subscribed(tag_subscription(TOPIC, "old", 1))
        await view.looked(6)
        assert not m.consumer.snapshot().problems


async def test_the_start_and_the_end_of_a_difference_are_each_reported_once(
    view: View, seen: Seen, logs: list[MutableMapping[str, Any]]
) -> None:
    """The evidence names the other member and its filter."""
    async with member(view.broker.peer.address, seen) as m:
        view.join()
        view.table = subscribed(tag_subscription(TOPIC, "a", 9))
        evidence = await problem(m, "subscription_mismatch")
        assert OTHER in evidence
        assert "TAG 'a'" in evidence
        await view.looked(6)
        view.table = subscribed(tag_subscription(TOPIC, "*", 10))
        await eventually(lambda: not m.consumer.snapshot().problems, "it is over")
    told = [entry["event"] for entry in logs if entry["event"].startswith("group.problem")]
    assert told == ["group.problem", "group.problem_ended"]


async def test_a_difference_in_only_one_check_is_not_reported(view: View, seen: Seen) -> None:
    """A reload may have reached one member and not yet the other."""
    view.join()
    async with member(view.broker.peer.address, seen) as m:
        for _ in range(3):
            await view.looked(2)
            view.table = subscribed(tag_subscription(TOPIC, "a", 9))
            await view.looked(1)
            view.table = subscribed(tag_subscription(TOPIC, "*", 10))
            await view.looked(1)
            assert not m.consumer.snapshot().problems


async def test_a_second_member_with_our_client_id_is_reported(view: View, seen: Seen) -> None:
    """The evidence has the other member's address."""
    async with member(view.broker.peer.address, seen) as m:
        await eventually(lambda: view.broker.members[GROUP], "it has joined")
        view.join(m.client.client_id, "10.0.0.7:1234")
        evidence = await problem(m, "client_id_conflict")
        assert "10.0.0.7:1234" in evidence
        view.connections.clear()
        await eventually(lambda: not m.consumer.snapshot().problems, "it is over")
