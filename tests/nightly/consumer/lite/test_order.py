"""Messages of a lite topic in the cache: batch after batch, and back to the broker after a failure."""

from __future__ import annotations

import pytest

from rmqd.errors import ProtocolError
from tests.consumer.lite.test_order import Case, popped


def test_a_reply_with_too_few_counts_is_an_error() -> None:
    """The reply is not used: a count could belong to another message."""
    with pytest.raises(ProtocolError):
        popped(["s1", "s1"], "0", most=32)


@pytest.mark.parametrize("why", ["leaving", "late"])
def test_later_messages_go_back_if_they_cannot_be_handled_here(why: str) -> None:
    """The member stops, or the invisible time is over."""
    case = Case()
    messages = case.queue.take(2)
    if why == "leaving":
        case.queue.start_release()
    else:
        case.receipts.late = True
    case.queue.finish(messages)
    assert (case.waiting, case.receipts.acknowledged, case.receipts.given_back) == ([], [0, 1], [2, 3, 4])


def test_a_skipped_batch_is_acknowledged_and_the_next_one_is_put() -> None:
    """A hook may skip messages."""
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
