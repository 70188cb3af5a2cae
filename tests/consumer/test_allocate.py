"""Every strategy gives each queue to one member, and the same answer to all."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.consumer.allocate import ALLOCATE_STRATEGIES, averagely, sorted_client_ids
from rmqd.wire.message import MessageQueue

QUEUES = [MessageQueue("T", broker, number) for broker in ("broker-a", "broker-b") for number in range(4)]
CLIENTS = ["10.0.0.1@c1", "10.0.0.2@c2", "10.0.0.3@c3"]


def short(queues: list[MessageQueue]) -> str:
    return " ".join(f"{queue.broker_name[-1]}{queue.queue_id}" for queue in queues)


@pytest.mark.parametrize(("client", "expected"), list(zip(CLIENTS, ["a0 a1 a2", "a3 b0 b1", "b2 b3"], strict=True)))
def test_averagely_as_java(client: str, expected: str) -> None:
    """Results of `AllocateMessageQueueAveragely` of 5.5.0."""
    assert short(averagely("g", client, QUEUES, CLIENTS)) == expected


@pytest.mark.parametrize(
    ("queues", "members", "expected"),
    [(8, 1, [8]), (8, 2, [4, 4]), (2, 3, [1, 1, 0]), (10, 4, [3, 3, 2, 2]), (0, 2, [0, 0]), (7, 7, [1] * 7)],
)
def test_averagely_gives_contiguous_shares(queues: int, members: int, expected: list[int]) -> None:
    """The first members get one more."""
    everything = [MessageQueue("T", "a", number) for number in range(queues)]
    ids = [f"c{number}" for number in range(members)]
    shares = [averagely("g", client, everything, ids) for client in ids]
    assert [len(share) for share in shares] == expected
    assert list(chain(*shares)) == everything


@given(
    strategy=st.sampled_from(sorted(ALLOCATE_STRATEGIES)),
    queues=st.integers(0, 40),
    clients=st.sets(st.text("0123456789.@#-abc\U0001f600\uffff", min_size=1), max_size=12),
)
def test_each_queue_goes_to_exactly_one_member(strategy: str, queues: int, clients: set[str]) -> None:
    """Whatever the strategy, the queues and the members."""
    everything = [MessageQueue("T", "a", number) for number in range(queues)]
    ids = sorted_client_ids(list(clients))
    shares = [ALLOCATE_STRATEGIES[strategy]("g", client, everything, ids) for client in ids]
    assert sorted(chain(*shares)) == (everything if clients else [])


@pytest.mark.parametrize("strategy", sorted(ALLOCATE_STRATEGIES))
def test_who_is_not_in_the_list_gets_nothing(strategy: str) -> None:
    """As Java: the own id may be missing after a broker's restart."""
    assert ALLOCATE_STRATEGIES[strategy]("g", "stranger", QUEUES, CLIENTS) == []


def test_client_ids_are_sorted_as_java_sorts_strings() -> None:
    """By UTF-16 units: a character above U+FFFF comes before U+FFFF. An id on two connections counts once."""
    assert sorted_client_ids(["b", "\uffff", "\U0001f600", "a", "b"]) == ["a", "b", "\U0001f600", "\uffff"]
