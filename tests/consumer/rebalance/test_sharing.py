"""A member's strategy in a running group: what it is asked, and what becomes of the queues when it fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode
from rmqd.consumer.allocate import AllocateError, AllocateStrategy
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
