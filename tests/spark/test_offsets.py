"""A query's place: its text, and what lies between two of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import rmqd.spark
from rmqd.errors import RmqdError
from rmqd.spark.source.source_offsets import Offsets
from rmqd.wire.message_queue import MessageQueue


def q(queue_id: int, topic: str = "orders", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, queue_id)


def test_equal_offsets_are_equal_text_in_whatever_order_they_were_found() -> None:
    """Spark takes another order of keys for new data, and runs empty batches without end."""
    queues = [q(10), q(2), q(1, broker="broker-b"), q(0, topic="a")]
    texts = {
        json.dumps(Offsets(dict.fromkeys(order, 7), dict.fromkeys(order, 3)).to_json())
        for order in (queues, queues[::-1], sorted(queues))
    }
    assert len(texts) == 1
    assert json.dumps(json.loads(*texts), sort_keys=True) in texts


def test_the_text_says_where_each_queue_is() -> None:
    """As documented: people read it in the checkpoint and in a query's progress."""
    offsets = Offsets({q(0): 120, q(1): 98}, {q(1): 90})
    assert offsets.to_json() == {
        "new": {"orders": {"broker-a": {"1": 90}}},
        "q": {"orders": {"broker-a": {"0": 120, "1": 98}}},
        "v": 1,
    }
    assert Offsets.of(offsets.to_json()) == offsets


def test_what_lies_between_is_by_queue_and_in_order_and_never_backwards() -> None:
    """A queue that is new starts where the later offset says; one that went back, or is gone, has nothing."""
    begin = Offsets({q(0): 5, q(1): 7, q(3): 9})
    end = Offsets({q(2): 4, q(1): 7, q(0): 8, q(4): 3, q(3): 2}, {q(2): 1})
    assert list(begin.ranges(end).items()) == [(q(0), (5, 8)), (q(2), (1, 4))]


def test_a_first_batch_starts_where_it_says_itself() -> None:
    """Repeated after a crash it comes with another `start`: where "latest" is by then."""
    assert Offsets({q(0): 150}).ranges(Offsets({q(0): 120}, {q(0): 100})) == {q(0): (100, 120)}


def test_other_offsets_are_refused() -> None:
    """A checkpoint of another source, or of a later rmqd."""
    for value in [{}, {"v": 2, "q": {}}, {"v": 1, "q": {"orders": 5}}, {"v": 1, "q": {"orders": {"b": {"0": "5"}}}}]:
        with pytest.raises(RmqdError):
            Offsets.of(value)


@pytest.mark.parametrize("written", [lambda tree: tree, json.dumps, str])
def test_the_lag_of_a_query_is_by_queue_and_in_all(written: Callable[[dict[str, Any]], object]) -> None:
    """Whether Spark hands offsets over as a dictionary, as JSON, or as Python writes them; other sources have none."""
    first, second = (MessageQueue("orders", "broker-a", number) for number in (0, 1))
    end, latest = Offsets({first: 7, second: 5}), Offsets({first: 10, second: 5})
    sources = [
        {"endOffset": written(end.to_json()), "latestOffset": written(latest.to_json())},
        {"endOffset": "5", "latestOffset": None},
    ]
    lag = rmqd.spark.lag({"sources": sources})
    assert lag is not None
    assert (lag.total, lag.queues) == (3, {first: 3, second: 0})
    assert rmqd.spark.lag({"sources": sources[1:]}) is None
    assert rmqd.spark.lag(None) is None
