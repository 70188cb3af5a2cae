"""Every strategy says what Java's class says, asked now; recorded answers are in tests/consumer/allocations.txt."""

from __future__ import annotations

import pytest

from tests.conformance import behaviour
from tests.consumer.allocate_cases import STRATEGIES
from tests.nightly.consumer.generated_cases import generated, java_answers

pytestmark = pytest.mark.rocketmq


@behaviour(
    "strategies",
    "All six allocate strategies give each member the same queues as Java's",
    java="AllocateMessageQueueAveragely, ...ByCircle, ConsistentHash, ByConfig, ByMachineRoom, MachineRoomNearby",
    rmqd="the same",
    checked="compared with the results of Java's classes, in 400 generated cases each",
)
def test_as_java_in_hundreds_of_cases() -> None:
    """The classes themselves, all in one JVM."""
    cases = [case for strategy in STRATEGIES for case in generated(strategy, seed=2, number=400)]
    answers = java_answers(cases)
    assert len(answers) == len(cases)
    for case, answer in zip(cases, answers, strict=True):
        assert case.ask() == answer, case
