"""Messages and batches made by hand, which look to a handler like a broker's."""

from __future__ import annotations

import pytest

from rmqd import Batch, MessageQueue
from rmqd.handler_api.batch import Outcome
from rmqd.testing import make_batch, make_message


def test_a_message_has_the_given_attributes() -> None:
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


@pytest.mark.parametrize(
    ("given", "sent"),
    [("grüße", "grüße".encode()), (b"\x00\xff", b"\x00\xff"), ({"id": 17}, b'{"id": 17}'), ([1, 2], b"[1, 2]")],
)
def test_a_body_may_be_bytes_text_or_a_json_value(given: object, sent: bytes) -> None:
    assert make_message(given).body == sent  # type: ignore[arg-type]


def test_a_batch_records_decisions() -> None:
    paid, broken = make_message(b"paid"), make_message(b"oops")
    batch = make_batch(paid, broken)
    assert type(batch) is Batch
    assert list(batch) == [paid, broken]
    batch.dead_letter(broken, "not JSON")
    assert batch.decisions()[1].outcome is Outcome.DEAD_LETTER
    assert batch.decisions()[1].reason == "not JSON"
    assert not batch.revoked


def test_a_batch_of_an_orderly_group_can_be_revoked_or_committed() -> None:
    assert make_batch(consume_mode="orderly", revoked=True).revoked
    assert not make_batch(consume_mode="orderly").revoked
    make_batch(consume_mode="orderly", auto_commit=False).commit()
    with pytest.raises(RuntimeError):
        make_batch(consume_mode="orderly").rollback()
