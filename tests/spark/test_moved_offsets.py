"""Which offsets on the brokers are somebody else's."""

from __future__ import annotations

from rmqd.spark.engine.checkpoint_generations import moves
from rmqd.wire.message_queue import MessageQueue


def test_only_what_lies_beyond_the_queries_own_commits_is_a_move() -> None:
    """Between what brokers were known to hold and the checkpoint, a commit is the driver's own."""
    one = MessageQueue("orders", "broker-a", 0)

    def is_move(stored: int, done: int = 10, held: int = 7) -> bool:
        return bool(moves({one: done}, {one: held}, {one: stored}))

    assert [stored for stored in range(14) if not is_move(stored)] == [7, 8, 9, 10]
    assert not is_move(4, done=4), "the query itself went back"
    assert moves({}, {}, {one: 5}) == {}, "the checkpoint does not know the queue: it starts there by itself"
