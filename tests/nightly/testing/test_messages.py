"""Messages and batches made by hand, which look to a handler like a broker's.

The core of these tests is in tests/testing/test_messages.py.
"""

from __future__ import annotations

import time

import pytest

from rmqd.errors import InvalidMessageError
from rmqd.testing import make_batch, make_message
from rmqd.wire.messages.properties import COMPRESSED


def test_make_message_needs_no_arguments() -> None:
    before = int(time.time() * 1000)
    first, second = make_message(), make_message()
    assert (first.body, first.keys, first.tags, first.reconsume_times) == (b"", None, None, 0)
    assert before <= first.born_timestamp <= first.store_timestamp <= time.time() * 1000
    assert first.msg_id != second.msg_id
    assert second.queue_offset == first.queue_offset + 1


def test_a_body_of_a_wrong_type_is_refused_with_the_expected_types() -> None:
    with pytest.raises(TypeError, match=r"a body cannot be int; expected bytes, text"):
        make_message(17)  # type: ignore[arg-type]


def test_messages_that_cannot_be_stored_or_read_are_refused() -> None:
    with pytest.raises(InvalidMessageError):
        make_message(properties={"large": "x" * 40_000})
    with pytest.raises(InvalidMessageError, match="no consumer could read the message: the body is not a ZLIB stream"):
        make_message("plain", sys_flag=COMPRESSED)


def test_a_batch_is_of_one_queue() -> None:
    with pytest.raises(ValueError, match="the messages of a batch must be from one queue"):
        make_batch(make_message(queue_id=0), make_message(queue_id=1))


def test_options_of_orderly_groups_are_refused_in_other_modes() -> None:
    with pytest.raises(ValueError, match="need consume_mode='orderly'"):
        make_batch(revoked=True)
    with pytest.raises(ValueError, match="expected concurrently or orderly"):
        make_batch(consume_mode="pop")  # type: ignore[arg-type]


def test_properties_are_text() -> None:
    with pytest.raises(TypeError, match="property 'amount' cannot be int; expected text"):
        make_message(properties={"amount": 100})  # type: ignore[dict-item]
