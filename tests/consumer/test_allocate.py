"""Allocation strategies: each returns what Java's class returns, and gives each queue to exactly one member."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.consumer.allocate import (
    ALLOCATE_STRATEGIES,
    AllocateByMachineRoom,
    averagely,
    sorted_client_ids,
)
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.allocate_cases import (
    RECORDED_OTHERS,
    RECORDED_SHARES,
    STRATEGIES,
    recorded,
)

QUEUES = [MessageQueue("T", broker, number) for broker in ("broker-a", "broker-b") for number in range(4)]
CLIENTS = ["10.0.0.1@c1", "10.0.0.2@c2", "10.0.0.3@c3"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_recorded_case_has_the_result_of_java(strategy: str) -> None:
    """Results of the 5.5.0 classes, also for no queue, no member, an unknown member, more members than queues."""
    cases = [(case, answer) for case, answer in recorded() if case.strategy == strategy]
    assert len([1 for _, answer in cases if answer]) == RECORDED_SHARES
    assert len([1 for _, answer in cases if not answer]) == RECORDED_OTHERS
    for case, answer in cases:
        assert case.ask() == answer, case


@pytest.mark.parametrize(
    ("queues", "members", "expected"),
    [(8, 1, [8]), (8, 2, [4, 4]), (2, 3, [1, 1, 0]), (10, 4, [3, 3, 2, 2]), (7, 7, [1] * 7)],
)
def test_averagely_gives_contiguous_shares(queues: int, members: int, expected: list[int]) -> None:
    """The first members get one queue more."""
    everything = [MessageQueue("T", "a", number) for number in range(queues)]
    ids = [f"c{number}" for number in range(members)]
    shares = [averagely("g", client, everything, ids) for client in ids]
    assert [len(share) for share in shares] == expected
    assert list(chain(*shares)) == everything


@given(
    strategy=st.sampled_from(sorted(ALLOCATE_STRATEGIES)),
    queues=st.sets(st.tuples(st.sampled_from(["east@a", "west@b"]), st.integers(0, 20)), min_size=1),
    clients=st.sets(st.text("0123456789.#-abc\U0001f600\uffff", min_size=1), min_size=1, max_size=12),
)
def test_each_queue_goes_to_exactly_one_member(strategy: str, queues: set[tuple[str, int]], clients: set[str]) -> None:
    everything = sorted(MessageQueue("T", broker, number) for broker, number in queues)
    ids = sorted_client_ids([f"10.0.0.1@{'east' if len(name) % 2 else 'north'}@{name}" for name in clients])
    shares = [ALLOCATE_STRATEGIES[strategy]("g", client, everything, ids) for client in ids]
    assert sorted(chain(*shares)) == everything


@pytest.mark.parametrize("strategy", sorted(ALLOCATE_STRATEGIES))
def test_a_member_that_is_not_in_the_list_gets_no_queues(strategy: str) -> None:
    """As in Java: the member's own id may be missing after a broker's restart."""
    assert ALLOCATE_STRATEGIES[strategy]("g", "stranger", QUEUES, CLIENTS) == []


@pytest.mark.parametrize(
    ("broker", "has"),
    [("east@a", True), ("east@a@", True), ("east@", False), ("east@a@b", False), ("east", False), ("@a", False)],
)
def test_machine_rooms_are_split_as_in_java(broker: str, has: bool) -> None:
    """Empty parts at the end do not count."""
    queue = MessageQueue("T", broker, 0)
    assert AllocateByMachineRoom(frozenset({"east"}))("g", "c", [queue], ["c"]) == [queue] * has


def test_client_ids_are_sorted_as_java_sorts_strings() -> None:
    """By UTF-16 units: a character above U+FFFF comes before U+FFFF. An id on two connections counts once."""
    assert sorted_client_ids(["b", "\uffff", "\U0001f600", "a", "b"]) == ["a", "b", "\U0001f600", "\uffff"]
