"""How a batch's limit is divided."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqd.spark.source.source_progress import share, share_bytes
from rmqd.wire.message_queue import MessageQueue

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(6)]
BACKLOGS = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 10**12))


@given(BACKLOGS, st.integers(1, 10**6))
def test_the_limit_is_used_up_and_kept(backlog: dict[MessageQueue, int], most: int) -> None:
    """All of it, no more than waits anywhere, and one of each queue at least, even where those are more than it."""
    taken = share(backlog, most)
    waiting = {queue: count for queue, count in backlog.items() if count}
    assert taken.keys() == waiting.keys()
    assert all(1 <= taken[queue] <= waiting[queue] for queue in taken)
    assert sum(taken.values()) == min(sum(waiting.values()), max(most, len(waiting)))


def test_it_is_divided_in_proportion() -> None:
    """So that all queues come to their ends together."""
    assert share({QUEUES[0]: 700, QUEUES[1]: 200, QUEUES[2]: 100}, 100) == {
        QUEUES[0]: 70, QUEUES[1]: 20, QUEUES[2]: 10,
    }  # fmt: skip


def test_bytes_are_divided_by_what_waits_in_bytes() -> None:
    """A queue of large messages gives fewer of them."""
    taken = share_bytes({QUEUES[0]: 1000, QUEUES[1]: 1000, QUEUES[2]: 0}, {QUEUES[0]: 100.0, QUEUES[1]: 900.0}, 100_000)
    assert taken == {QUEUES[0]: 100, QUEUES[1]: 100}
    assert share_bytes({QUEUES[0]: 5}, {QUEUES[0]: 100.0}, 1) == {QUEUES[0]: 1}
