"""A lite topic's messages in the cache: batch after batch, and back to the broker where one fails."""

from __future__ import annotations

import pytest

from rmqd.errors import ProtocolError
from tests.consumer.lite.test_order import Case, popped


def test_counts_that_do_not_fit_the_reply() -> None:
    """The reply is not used: a count would be another message's."""
    with pytest.raises(ProtocolError):
        popped(["s1", "s1"], "0", most=32)


@pytest.mark.parametrize("why", ["leaving", "late"])
def test_what_follows_goes_back_where_it_is_not_to_be_handled_here(why: str) -> None:
    """A member that leaves, and a time that is over."""
    case = Case()
    messages = case.queue.take(2)
    if why == "leaving":
        case.queue.start_release()
    else:
        case.receipts.late = True
    case.queue.finish(messages)
    assert (case.waiting, case.receipts.acknowledged, case.receipts.given_back) == ([], [0, 1], [2, 3, 4])


def test_a_batch_that_nobody_wants_is_acknowledged_and_the_next_one_put() -> None:
    """A hook may leave messages out."""
    case = Case()
    (block,) = popped(["s1"] * 3, "0;0;0", most=1)
    case.queue.finish(case.queue.take(2))
    case.queue.take(2)
    for message in block.messages:
        case.queue.skip(message)
    case.receipts.acknowledged.clear()
    case.queue.put(block, 0)
    assert case.receipts.acknowledged == [0]
    assert case.waiting == [1]
