"""A member's allocation strategy in a running group: its arguments and its failures."""

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
    """A strategy whose result a test sets. Records its arguments for the topic."""

    def __init__(self) -> None:
        self.answer: Callable[[Sequence[MessageQueue]], Any] = list
        self.asked: list[tuple[str, str, Sequence[MessageQueue], Sequence[str]]] = []

    def __call__(self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> Any:
        if queues[0].topic != TOPIC:
            return []
        self.asked.append((group, client_id, queues, client_ids))
        return self.answer(queues)


def rebalance(running: Member) -> None:
    """Start a rebalance, as after a broker's notification of changed members."""
    running.consumer.on_consumer_ids_changed()


def problem(running: Member) -> Problem:
    """Return the problem about the topic. The retry topic may have the same problem."""
    [found] = [one for one in running.consumer.snapshot().problems if RETRY not in one.evidence]
    return found


def list_members(broker: ScriptedBroker, *client_ids: str) -> None:
    """Let the broker list these members, whichever members send heartbeats."""
    body = json.dumps({"consumerIdList": client_ids}).encode()
    broker.peer.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Reply(body=body))


async def test_a_strategy_is_called_with_all_queues_and_members_sorted(broker: ScriptedBroker) -> None:
    """The group's name, the own client id, then both lists."""
    queues = broker.create_topic(TOPIC, 3)
    broker.members[GROUP] += ["~@java", "0@java"]
    strategy = Changing()
    async with member(broker.peer.address, Seen(), allocate_strategy=AllocateStrategy("own", strategy)) as running:
        await eventually(lambda: len(running.owned()) == 3, "it owns the allocated queues")
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
async def test_a_strategy_failure_is_reported_and_keeps_the_queues(
    broker: ScriptedBroker, answer: Callable[[Sequence[MessageQueue]], Any], expected: str
) -> None:
    """Until the strategy returns a valid result. New messages are handled meanwhile."""
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
        await eventually(lambda: running.owned() == {(TOPIC, 0)}, "the new result is applied")
        assert not running.consumer.snapshot().problems
    assert found.cause == "allocate_failed"
    assert found.evidence.startswith(f"allocate_strategy cannot divide the queues of {TOPIC}: {expected}")


async def test_a_member_that_no_broker_lists_gets_no_queue_and_logs_it(broker: ScriptedBroker) -> None:
    """As in Java, after one more heartbeat."""
    broker.create_topic(TOPIC)
    with capture_logs() as logs:
        async with member(broker.peer.address, Seen()) as running:
            await eventually(lambda: running.owned() == {(TOPIC, 0)}, "it has joined")
            list_members(broker, "0@java")
            rebalance(running)
            await eventually(lambda: not running.owned(), "the queue is released")
    assert any(line["event"] == "rebalance.not_listed" for line in logs)
