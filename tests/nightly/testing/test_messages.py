"""Messages and batches by hand: what a handler sees of them is what a broker's would show.

The core of these tests is in tests/testing/test_messages.py.
"""

from __future__ import annotations

import time

import pytest

from rmqd.errors import InvalidMessageError
from rmqd.testing import make_batch, make_message
from rmqd.wire.messages.properties import COMPRESSED


def test_a_message_needs_nothing_said() -> None:
    before = int(time.time() * 1000)
    first, second = make_message(), make_message()
    assert (first.body, first.keys, first.tags, first.reconsume_times) == (b"", None, None, 0)
    assert before <= first.born_timestamp <= first.store_timestamp <= time.time() * 1000
    assert first.msg_id != second.msg_id
    assert second.queue_offset == first.queue_offset + 1


def test_a_body_of_another_kind_is_refused_with_what_is_accepted() -> None:
    with pytest.raises(TypeError, match=r"a body cannot be int; expected bytes, text"):
        make_message(17)  # type: ignore[arg-type]


def test_what_no_broker_could_store_or_no_consumer_could_read_is_refused() -> None:
    with pytest.raises(InvalidMessageError):
        make_message(properties={"large": "x" * 40_000})
    with pytest.raises(InvalidMessageError, match="no consumer could read the message: the body is not a ZLIB stream"):
        make_message("plain", sys_flag=COMPRESSED)


def test_a_batch_is_of_one_queue() -> None:
    with pytest.raises(ValueError, match="the messages of a batch must be from one queue"):
        make_batch(make_message(queue_id=0), make_message(queue_id=1))


def test_what_only_orderly_groups_have_is_refused_elsewhere() -> None:
    with pytest.raises(ValueError, match="need consume_mode='orderly'"):
        make_batch(revoked=True)
    with pytest.raises(ValueError, match="expected concurrently or orderly"):
        make_batch(consume_mode="pop")  # type: ignore[arg-type]


def test_properties_are_text() -> None:
    with pytest.raises(TypeError, match="property 'amount' cannot be int; expected text"):
        make_message(properties={"amount": 100})  # type: ignore[dict-item]
