"""A member's strategy in a running group: what it is asked, and what becomes of the queues when it fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode
from rmqd.consumer.allocate import AllocateError, AllocateStrategy, ByConfig
from rmqd.consumer.health.causes import Problem
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("unpaced")

RETRY = f"%RETRY%{GROUP}"


class Changing:
    """A strategy whose answer a test sets; it remembers what it was asked for the topic."""

    def __init__(self) -> None:
        self.answer: Callable[[Sequence[MessageQueue]], Any] = list
        self.asked: list[tuple[str, str, Sequence[MessageQueue], Sequence[str]]] = []

    def __call__(self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> Any:
        if queues[0].topic != TOPIC:
            return []
        self.asked.append((group, client_id, queues, client_ids))
        return self.answer(queues)


def rebalance(running: Member) -> None:
    """As by the broker's word that members changed."""
    running.consumer.on_consumer_ids_changed()


def problem(running: Member) -> Problem:
    """The one about the topic; the retry topic may have the same."""
    [found] = [one for one in running.consumer.snapshot().problems if RETRY not in one.evidence]
    return found


def list_members(broker: ScriptedBroker, *client_ids: str) -> None:
    """Have the broker list these, whoever sends heartbeats."""
    body = json.dumps({"consumerIdList": client_ids}).encode()
    broker.peer.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Reply(body=body))


async def test_a_strategy_is_asked_with_all_queues_and_all_members_sorted(broker: ScriptedBroker) -> None:
    """The group's name, the own client id, then both lists."""
    queues = broker.create_topic(TOPIC, 3)
    broker.members[GROUP] += ["~@java", "0@java"]
    strategy = Changing()
    async with member(broker.peer.address, Seen(), allocate_strategy=AllocateStrategy("own", strategy)) as running:
        await eventually(lambda: len(running.owned()) == 3, "it has what it asked for")
    own_id = running.client.client_id
    assert strategy.asked[0] == (GROUP, own_id, tuple(queues), ("0@java", own_id, "~@java"))


def refuse(queues: Sequence[MessageQueue]) -> Any:
    raise AllocateError("the moon is not full")


def crash(queues: Sequence[MessageQueue]) -> Any:
    return queues[1:][99]


FAILURES = {
    "refuses": (refuse, "the moon is not full"),
    "raises": (crash, "own raised IndexError: tuple index out of range (" + __file__ + ":"),
    "None": (lambda _: None, "own returned None; expected a list of queues"),
    "text": (lambda _: "t1", "own returned a str; expected a list of queues"),
    "stray": (
        lambda _: [MessageQueue(TOPIC, "elsewhere", 0)],
        "own returned t1@elsewhere:0, but the topic",
    ),
    "no queues": (lambda _: [0], "own returned 0, but the topic has no such queue"),
}


@pytest.mark.parametrize(("answer", "expected"), FAILURES.values(), ids=FAILURES)
async def test_a_strategy_that_fails_leaves_the_queues_and_is_reported(
    broker: ScriptedBroker, answer: Callable[[Sequence[MessageQueue]], Any], expected: str
) -> None:
    """Until it answers again; what comes meanwhile is handled."""
    queues = broker.create_topic(TOPIC, 2)
    strategy, seen = Changing(), Seen()
    async with member(broker.peer.address, seen, allocate_strategy=AllocateStrategy("own", strategy)) as running:
        await eventually(lambda: len(running.owned()) == 2, "it has both queues")
        strategy.answer = answer
        rebalance(running)
        await eventually(lambda: running.consumer.snapshot().problems, "the failure is reported")
        found = problem(running)
        await broker.store(queues[1], b"meanwhile")
        await eventually(lambda: b"meanwhile" in seen.bodies, "its queues are consumed")
        assert len(running.owned()) == 2
        strategy.answer = lambda all_queues: all_queues[:1]
        rebalance(running)
        await eventually(lambda: running.owned() == {(TOPIC, 0)}, "the new answer holds")
        assert not running.consumer.snapshot().problems
    assert found.cause == "allocate_failed"
    assert found.evidence.startswith(f"allocate_strategy cannot divide the queues of {TOPIC}: {expected}")


async def test_a_group_whose_strategy_never_answers_is_not_ready_and_says_why(broker: ScriptedBroker) -> None:
    """It has no queue, and asks again."""
    broker.create_topic(TOPIC)
    strategy = Changing()
    strategy.answer = refuse
    async with member(broker.peer.address, Seen(), allocate_strategy=AllocateStrategy("own", strategy)) as running:
        await eventually(lambda: len(strategy.asked) >= 2, "it is asked again")
        snapshot = running.consumer.snapshot()
        assert not snapshot.ready
        assert "the moon is not full" in (snapshot.not_ready_reason or "")
        assert running.owned() == set()


async def test_queues_that_are_written_down_are_taken_whoever_is_there(broker: ScriptedBroker) -> None:
    """One that does not exist is a problem for as long as it does not."""
    broker.create_topic(TOPIC, 3)
    broker.members[GROUP] += ["0@java"]
    named = (MessageQueue(TOPIC, "a", 1), MessageQueue(TOPIC, "a", 3), MessageQueue(RETRY, "a", 0))
    async with member(
        broker.peer.address, Seen(), allocate_strategy=AllocateStrategy("by_config", ByConfig(named))
    ) as running:
        await eventually(lambda: running.owned() == {(TOPIC, 1)}, "the one that exists is taken")
        found = problem(running)
    assert found.cause == "allocate_failed"
    assert found.evidence == f"allocate_queues lists queues that {TOPIC} does not have: {TOPIC}@a:3"


@pytest.mark.parametrize(("topics", "told"), [([TOPIC], True), ([TOPIC, RETRY], False)])
async def test_who_names_no_retry_queue_is_told(broker: ScriptedBroker, topics: list[str], told: bool) -> None:
    """Java is silent about it, and nobody handles the group's retries."""
    broker.create_topic(TOPIC)
    named = tuple(MessageQueue(topic, "a", 0) for topic in topics)
    with capture_logs() as logs:
        async with member(
            broker.peer.address, Seen(), allocate_strategy=AllocateStrategy("by_config", ByConfig(named))
        ) as running:
            await eventually(lambda: running.owned() == {(TOPIC, 0)}, "it runs")
    assert [line["topic"] for line in logs if line["event"] == "rebalance.retries_left_out"] == [RETRY] * told


async def test_a_member_that_no_broker_lists_gets_no_queue_and_says_so(broker: ScriptedBroker) -> None:
    """As Java; a heartbeat is tried before."""
    broker.create_topic(TOPIC)
    with capture_logs() as logs:
        async with member(broker.peer.address, Seen()) as running:
            await eventually(lambda: running.owned() == {(TOPIC, 0)}, "it has joined")
            list_members(broker, "0@java")
            rebalance(running)
            await eventually(lambda: not running.owned(), "it has given its queue up")
    assert any(line["event"] == "rebalance.not_listed" for line in logs)


async def test_an_empty_list_of_members_changes_nothing(broker: ScriptedBroker) -> None:
    """A broker that knows the group lists at least us, after our heartbeat; Java blames its strategy."""
    broker.create_topic(TOPIC)
    async with member(broker.peer.address, Seen()) as running:
        await eventually(lambda: running.owned() == {(TOPIC, 0)}, "it has joined")
        list_members(broker)
        rebalance(running)
        await eventually(lambda: running.consumer.snapshot().problems, "it is reported")
        assert running.owned() == {(TOPIC, 0)}
        assert "does not know the group" in problem(running).evidence
        assert "`mqadmin updateSubGroup -c CLUSTER -g g1`" in (running.consumer.snapshot().not_ready_reason or "")
        list_members(broker, running.client.client_id)
        rebalance(running)
        await eventually(lambda: not running.consumer.snapshot().problems, "it is over")
        assert running.consumer.snapshot().ready
