"""Messages and batches by hand: what a handler sees of them is what a broker's would show."""

from __future__ import annotations

import time

import pytest

from rmqd import Batch, MessageQueue
from rmqd.errors import InvalidMessageError
from rmqd.handler_api.batch import Outcome
from rmqd.testing import make_batch, make_message


def test_a_message_has_what_it_was_given() -> None:
    message = make_message(
        b"paid",
        topic="orders",
        keys="order-1 ada",
        tags="paid",
        properties={"region": "eu"},
        msg_id="7F00000100012A139A",
        queue_id=3,
        queue_offset=17,
        broker_name="broker-b",
        commit_log_offset=4096,
        born_timestamp=1_700_000_000_000,
        store_timestamp=1_700_000_000_001,
        born_host="10.0.0.1:1234",
        store_host="10.0.0.2:10911",
        reconsume_times=2,
        flag=5,
    )
    assert (message.topic, message.body, message.keys, message.tags) == ("orders", b"paid", "order-1 ada", "paid")
    assert message.properties["region"] == "eu"
    assert message.msg_id == "7F00000100012A139A"
    assert message.message_queue == MessageQueue("orders", "broker-b", 3)
    assert (message.queue_offset, message.commit_log_offset, message.reconsume_times, message.flag) == (17, 4096, 2, 5)
    assert (message.born_timestamp, message.store_timestamp) == (1_700_000_000_000, 1_700_000_000_001)
    assert (message.born_host, message.store_host) == ("10.0.0.1:1234", "10.0.0.2:10911")


def test_a_message_needs_nothing_said() -> None:
    before = int(time.time() * 1000)
    first, second = make_message(), make_message()
    assert (first.body, first.keys, first.tags, first.reconsume_times) == (b"", None, None, 0)
    assert before <= first.born_timestamp <= first.store_timestamp <= time.time() * 1000
    assert first.msg_id != second.msg_id
    assert second.queue_offset == first.queue_offset + 1


@pytest.mark.parametrize(
    ("given", "sent"),
    [("grüße", "grüße".encode()), (b"\x00\xff", b"\x00\xff"), ({"id": 17}, b'{"id": 17}'), ([1, 2], b"[1, 2]")],
)
def test_a_body_may_be_bytes_text_or_what_becomes_json(given: object, sent: bytes) -> None:
    assert make_message(given).body == sent  # type: ignore[arg-type]


def test_a_body_of_another_kind_is_refused_with_what_is_accepted() -> None:
    with pytest.raises(TypeError, match=r"a body cannot be int; expected bytes, text"):
        make_message(17)  # type: ignore[arg-type]


def test_what_no_broker_could_store_is_refused() -> None:
    with pytest.raises(InvalidMessageError):
        make_message(properties={"large": "x" * 40_000})


def test_a_batch_takes_decisions() -> None:
    paid, broken = make_message(b"paid"), make_message(b"oops")
    batch = make_batch(paid, broken)
    assert type(batch) is Batch
    assert list(batch) == [paid, broken]
    batch.dead_letter(broken, "not JSON")
    assert batch.decisions()[1].outcome is Outcome.DEAD_LETTER
    assert batch.decisions()[1].reason == "not JSON"
    assert not batch.revoked


def test_a_batch_of_an_orderly_group_knows_its_lock() -> None:
    assert make_batch(consume_mode="orderly", revoked=True).revoked
    assert not make_batch(consume_mode="orderly").revoked
    make_batch(consume_mode="orderly", auto_commit=False).commit()
    with pytest.raises(RuntimeError):
        make_batch(consume_mode="orderly").rollback()


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
