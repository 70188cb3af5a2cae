"""A query's offsets: their text, the ranges between them, the division of a batch's limit, and the tasks of ranges."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rmqd.spark
from rmqd.client.client_options import ClientOptions
from rmqd.errors import RmqdError
from rmqd.spark.session.queue_range import QueueRange, group_into_tasks
from rmqd.spark.session.spark_access import ClientAccess
from rmqd.spark.source.source_offsets import SourceOffsets, parse_reported_offsets
from rmqd.spark.source.source_progress import share_messages, share_messages_by_bytes
from rmqd.wire.message_queue import MessageQueue


def q(queue_id: int, topic: str = "orders", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, queue_id)


def test_equal_offsets_have_equal_text_in_any_order() -> None:
    """Spark takes a different order of keys for new data, and would run empty batches endlessly."""
    queues = [q(10), q(2), q(1, broker="broker-b"), q(0, topic="a")]
    texts = {
        json.dumps(SourceOffsets(dict.fromkeys(order, 7), dict.fromkeys(order, 3)).to_json())
        for order in (queues, queues[::-1], sorted(queues))
    }
    assert len(texts) == 1
    assert json.dumps(json.loads(*texts), sort_keys=True) in texts


def test_the_text_names_the_offset_of_each_queue() -> None:
    """As documented: people read it in the checkpoint and in a query's progress."""
    offsets = SourceOffsets({q(0): 120, q(1): 98}, {q(1): 90})
    assert offsets.to_json() == {
        "new": {"orders": {"broker-a": {"1": 90}}},
        "q": {"orders": {"broker-a": {"0": 120, "1": 98}}},
        "v": 1,
    }
    assert SourceOffsets.from_json(offsets.to_json()) == offsets


def test_ranges_between_offsets_are_sorted_and_never_go_backwards() -> None:
    """A new queue starts where the later offset says. A queue that went back, or was deleted, has no range."""
    begin = SourceOffsets({q(0): 5, q(1): 7, q(3): 9})
    end = SourceOffsets({q(2): 4, q(1): 7, q(0): 8, q(4): 3, q(3): 2}, {q(2): 1})
    assert list(begin.ranges(end).items()) == [(q(0), (5, 8)), (q(2), (1, 4))]


def test_a_first_batch_starts_at_its_own_start_offsets() -> None:
    """If it is repeated after a crash, Spark passes another `start`, because "latest" has moved."""
    assert SourceOffsets({q(0): 150}).ranges(SourceOffsets({q(0): 120}, {q(0): 100})) == {q(0): (100, 120)}


def test_offsets_in_json_may_have_an_apostrophe() -> None:
    offsets = SourceOffsets({MessageQueue("orders", "broker-o'neill", 0): 7})
    assert parse_reported_offsets(json.dumps(offsets.to_json())) == offsets


def test_offsets_of_another_format_are_refused() -> None:
    """A checkpoint of another source, or of a later rmqd."""
    for value in [{}, {"v": 2, "q": {}}, {"v": 1, "q": {"orders": 5}}, {"v": 1, "q": {"orders": {"b": {"0": "5"}}}}]:
        with pytest.raises(RmqdError):
            SourceOffsets.from_json(value)


@pytest.mark.parametrize("written", [lambda tree: tree, json.dumps, str])
def test_the_lag_of_a_query_by_queue_and_in_total(written: Callable[[dict[str, Any]], object]) -> None:
    """Spark passes offsets as a dictionary, as JSON or as a Python literal. Other sources have no lag."""
    first, second = (MessageQueue("orders", "broker-a", number) for number in (0, 1))
    end, latest = SourceOffsets({first: 7, second: 5}), SourceOffsets({first: 10, second: 5})
    sources = [
        {"endOffset": written(end.to_json()), "latestOffset": written(latest.to_json())},
        {"endOffset": "5", "latestOffset": None},
        dict.fromkeys(("endOffset", "latestOffset"), written({"q": {"0": 5}})),  # Kafka's, of a topic q
    ]
    lag = rmqd.spark.lag({"sources": sources})
    assert lag is not None
    assert (lag.total, lag.queues) == (3, {first: 3, second: 0})
    assert rmqd.spark.lag({"sources": sources[1:]}) is None
    assert rmqd.spark.lag(None) is None


QUEUES = [MessageQueue("T", "broker-a", number) for number in range(6)]
BACKLOGS = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 10**12))


@given(BACKLOGS, st.integers(1, 10**6))
def test_the_limit_is_used_up_and_kept(backlog: dict[MessageQueue, int], most: int) -> None:
    """A batch uses the whole limit, or all messages. Each queue contributes at least one, even above the limit."""
    taken = share_messages(backlog, most)
    waiting = {queue: count for queue, count in backlog.items() if count}
    assert taken.keys() == waiting.keys()
    assert all(1 <= taken[queue] <= waiting[queue] for queue in taken)
    assert sum(taken.values()) == min(sum(waiting.values()), max(most, len(waiting)))


def test_the_limit_is_divided_in_proportion_to_the_backlog() -> None:
    """So all queues reach their ends at the same time."""
    assert share_messages({QUEUES[0]: 700, QUEUES[1]: 200, QUEUES[2]: 100}, 100) == {
        QUEUES[0]: 70, QUEUES[1]: 20, QUEUES[2]: 10,
    }  # fmt: skip


def test_a_limit_in_bytes_takes_an_equal_share_of_each_queue() -> None:
    """Each queue contributes at least one message."""
    taken = share_messages_by_bytes(
        {QUEUES[0]: 1000, QUEUES[1]: 1000, QUEUES[2]: 0}, {QUEUES[0]: 100.0, QUEUES[1]: 900.0}, 100_000
    )
    assert taken == {QUEUES[0]: 100, QUEUES[1]: 100}
    assert share_messages_by_bytes({QUEUES[0]: 5}, {QUEUES[0]: 100.0}, 1) == {QUEUES[0]: 1}


ACCESS = ClientAccess(ClientOptions(nameservers=("127.0.0.1:9876",)))


def ranges(*counts: int) -> list[QueueRange]:
    return [
        QueueRange(queue=MessageQueue("orders", "broker-a", number), start=0, end=count, access=ACCESS)
        for number, count in enumerate(counts)
    ]


def tasks(counts: list[int], most: int | None, most_records: int | None = None) -> list[list[int]]:
    """The queue ids of each task."""
    return [[one.queue.queue_id for one in task] for task in group_into_tasks(ranges(*counts), most, most_records)]


def test_each_range_has_its_own_task_up_to_the_limit() -> None:
    """The limit may be missing."""
    assert tasks([1, 1, 1], None) == tasks([1, 1, 1], 3) == [[0], [1], [2]]
    assert tasks([], 4) == []


def test_tasks_have_about_the_same_number_of_messages() -> None:
    """A long queue has a task alone, and the short ones share a task, in their order."""
    assert tasks([10, 900, 10, 10, 10], 2) == [[1], [0, 2, 3, 4]]
    shared = group_into_tasks(ranges(*range(1, 1001)), 8, None)
    sums = [sum(map(len, task)) for task in shared]
    assert (len(sums), sum(sums)) == (8, 500_500)
    assert max(sums) - min(sums) <= 1000
    assert all([one.queue.queue_id for one in task] == sorted(one.queue.queue_id for one in task) for task in shared)


def test_a_shared_task_does_not_exceed_the_limit_of_messages() -> None:
    """More tasks are made instead. A range that alone exceeds the limit is not divided here."""
    assert tasks([5, 5, 5, 5, 5], 2, 10) == [[0, 2], [1, 3], [4]]
    assert tasks([50, 5, 5], 2, 10) == [[0], [1, 2]]
