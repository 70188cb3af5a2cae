"""Every strategy returns the same as Java's class, run now; recorded results are in tests/consumer/allocations.txt."""

from __future__ import annotations

import pytest

from rmqd.consumer.allocate import (
    ALLOCATE_STRATEGIES,
    AllocateByConfig,
    AllocateError,
)
from rmqd.wire.message_queue import MessageQueue
from tests.conformance import behaviour
from tests.consumer.allocate_cases import (
    STRATEGIES,
)
from tests.consumer.test_allocate import CLIENTS, QUEUES
from tests.nightly.consumer.generated_cases import generated, java_answers

pytestmark = pytest.mark.rocketmq


@behaviour(
    "strategies",
    "All six allocate strategies give each member the same queues as Java's",
    java="AllocateMessageQueueAveragely, ...ByCircle, ConsistentHash, ByConfig, ByMachineRoom, MachineRoomNearby",
    rmqd="the same",
    checked="compared with the results of Java's classes, in 400 generated cases each",
)
def test_strategies_match_java_in_hundreds_of_cases() -> None:
    """Java's own classes, all in one JVM."""
    cases = [case for strategy in STRATEGIES for case in generated(strategy, seed=2, number=400)]
    answers = java_answers(cases)
    assert len(answers) == len(cases)
    for case, answer in zip(cases, answers, strict=True):
        assert case.ask() == answer, case


ROOM_OF_CLIENT = "member 10.0.0.1@c1 has no machine room in its client id"


ROOM_OF_BROKER = "broker broker-a has no machine room in its name"


def short(queues: list[MessageQueue]) -> str:
    return " ".join(f"{queue.broker_name[-1]}{queue.queue_id}" for queue in queues)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("averagely", ["a0 a1 a2", "a3 b0 b1", "b2 b3"]),
        ("averagely_by_circle", ["a0 a3 b2", "a1 b0 b3", "a2 b1"]),
        ("consistent_hash", ["b0", "a0 a1 b3", "a2 a3 b1 b2"]),
    ],
)
def test_shares_match_java_in_a_readable_case(strategy: str, expected: list[str]) -> None:
    """Eight queues of two brokers, three members."""
    shares = [ALLOCATE_STRATEGIES[strategy]("g", client, QUEUES, CLIENTS) for client in CLIENTS]
    assert [short(list(share)) for share in shares] == expected


@pytest.mark.parametrize(
    ("broker", "client", "expected"),
    [("broker-a", "10.0.0.1@east@1", ROOM_OF_BROKER), ("east@a", "10.0.0.1@c1", ROOM_OF_CLIENT)],
)
def test_the_error_names_the_client_or_broker_without_a_machine_room(broker: str, client: str, expected: str) -> None:
    """Java throws, too; here the text helps."""
    with pytest.raises(AllocateError, match=expected):
        ALLOCATE_STRATEGIES["machine_room_nearby"]("g", client, [MessageQueue("T", broker, 0)], [client])


def test_a_configured_queue_that_does_not_exist_is_left_out() -> None:
    """Java assigns it, and pulls without success."""
    there, gone = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-z", 0)
    assert AllocateByConfig((there, gone))("g", CLIENTS[0], QUEUES, CLIENTS) == [there]
