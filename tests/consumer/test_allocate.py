"""Every strategy says what Java's class says, gives each queue to one member, and the same answer to all."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.consumer.allocate import (
    ALLOCATE_STRATEGIES,
    AllocateError,
    ByConfig,
    ByMachineRoom,
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
ROOM_OF_CLIENT = "member 10.0.0.1@c1 has no machine room in its client id"
ROOM_OF_BROKER = "broker broker-a has no machine room in its name"


def short(queues: list[MessageQueue]) -> str:
    return " ".join(f"{queue.broker_name[-1]}{queue.queue_id}" for queue in queues)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_as_java_in_every_recorded_case(strategy: str) -> None:
    """Answers of the classes of 5.5.0, edges included: no queue, no member, a stranger, more members than queues."""
    cases = [(case, answer) for case, answer in recorded() if case.strategy == strategy]
    assert len([1 for _, answer in cases if answer]) == RECORDED_SHARES
    assert len([1 for _, answer in cases if not answer]) == RECORDED_OTHERS
    for case, answer in cases:
        assert case.ask() == answer, case


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("averagely", ["a0 a1 a2", "a3 b0 b1", "b2 b3"]),
        ("averagely_by_circle", ["a0 a3 b2", "a1 b0 b3", "a2 b1"]),
        ("consistent_hash", ["b0", "a0 a1 b3", "a2 a3 b1 b2"]),
    ],
)
def test_as_java_by_eye(strategy: str, expected: list[str]) -> None:
    """Eight queues of two brokers, three members."""
    shares = [ALLOCATE_STRATEGIES[strategy]("g", client, QUEUES, CLIENTS) for client in CLIENTS]
    assert [short(list(share)) for share in shares] == expected


@pytest.mark.parametrize(
    ("queues", "members", "expected"),
    [(8, 1, [8]), (8, 2, [4, 4]), (2, 3, [1, 1, 0]), (10, 4, [3, 3, 2, 2]), (7, 7, [1] * 7)],
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
    queues=st.sets(st.tuples(st.sampled_from(["east@a", "west@b"]), st.integers(0, 20)), min_size=1),
    clients=st.sets(st.text("0123456789.#-abc\U0001f600\uffff", min_size=1), min_size=1, max_size=12),
)
def test_each_queue_goes_to_exactly_one_member(strategy: str, queues: set[tuple[str, int]], clients: set[str]) -> None:
    """Whatever the strategy, the queues and the members."""
    everything = sorted(MessageQueue("T", broker, number) for broker, number in queues)
    ids = sorted_client_ids([f"10.0.0.1@{'east' if len(name) % 2 else 'north'}@{name}" for name in clients])
    shares = [ALLOCATE_STRATEGIES[strategy]("g", client, everything, ids) for client in ids]
    assert sorted(chain(*shares)) == everything


@pytest.mark.parametrize("strategy", sorted(ALLOCATE_STRATEGIES))
def test_who_is_not_in_the_list_gets_nothing(strategy: str) -> None:
    """As Java: the own id may be missing after a broker's restart."""
    assert ALLOCATE_STRATEGIES[strategy]("g", "stranger", QUEUES, CLIENTS) == []


@pytest.mark.parametrize(
    ("broker", "has"),
    [("east@a", True), ("east@a@", True), ("east@", False), ("east@a@b", False), ("east", False), ("@a", False)],
)
def test_a_room_is_read_as_java_splits_text(broker: str, has: bool) -> None:
    """Empty parts at the end do not count."""
    queue = MessageQueue("T", broker, 0)
    assert ByMachineRoom(frozenset({"east"}))("g", "c", [queue], ["c"]) == [queue] * has


@pytest.mark.parametrize(
    ("broker", "client", "expected"),
    [("broker-a", "10.0.0.1@east@1", ROOM_OF_BROKER), ("east@a", "10.0.0.1@c1", ROOM_OF_CLIENT)],
)
def test_a_room_that_cannot_be_told_is_named_with_what_is_needed(broker: str, client: str, expected: str) -> None:
    """As Java, which throws; here the text helps."""
    with pytest.raises(AllocateError, match=expected):
        ALLOCATE_STRATEGIES["machine_room_nearby"]("g", client, [MessageQueue("T", broker, 0)], [client])


def test_a_queue_that_is_written_down_and_does_not_exist_is_left_out() -> None:
    """Java takes it, and pulls in vain."""
    there, gone = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-z", 0)
    assert ByConfig((there, gone))("g", CLIENTS[0], QUEUES, CLIENTS) == [there]


def test_client_ids_are_sorted_as_java_sorts_strings() -> None:
    """By UTF-16 units: a character above U+FFFF comes before U+FFFF. An id on two connections counts once."""
    assert sorted_client_ids(["b", "\uffff", "\U0001f600", "a", "b"]) == ["a", "b", "\U0001f600", "\uffff"]
