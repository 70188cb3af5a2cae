"""The properties of a message's copy that is sent to the retry topic or to the dead-letter topic."""

from __future__ import annotations

from rmqd.consumer.handling.send_back import copied_properties
from rmqd.testing import make_message

NEVER_CARRIED = {
    # the broker would delay the copy
    "DELAY": "3",
    "TIMER_DELIVER_MS": "1700000000000",
    "TIMER_DELAY_SEC": "5",
    "TIMER_DELAY_MS": "5000",
    "TIMER_OUT_MS": "1700000000000",
    "TIMER_ENQUEUE_MS": "1700000000000",
    "TIMER_DEQUEUE_MS": "1700000000000",
    "TIMER_ROLL_TIMES": "1",
    # the broker would count attempts, or deliver the copy to the topic of an earlier delay
    "REAL_TOPIC": "orders",
    "REAL_QID": "1",
    "RECONSUME_TIME": "2",
    "MAX_RECONSUME_TIMES": "16",
    "WAIT": "true",
    # the broker would keep the copy as the half message of a transaction, and never deliver it
    "TRAN_MSG": "true",
    # the broker would refuse the copy, or enter it into light queues again
    "INNER_NUM": "2",
    "INNER_BASE": "40",
    "INNER_MULTI_DISPATCH": "%LMQ%a",
    "INNER_MULTI_QUEUE_OFFSET": "7",
    "__LITE_TOPIC": "room-1",
    # the reason of an earlier dead letter
    "RMQD_GROUP": "mailer",
    "RMQD_REASON": "max_reconsume_times reached",
    "RMQD_EXCEPTION": "ValueError: no",
}


def test_a_copy_carries_no_property_that_changes_its_delivery() -> None:
    own = {"KEYS": "order-1", "TAGS": "paid", "shop": "a", "UNIQ_KEY": "7F000001000000000000000000000001"}
    message = make_message(topic="orders", properties=own | NEVER_CARRIED)
    kept = copied_properties(message, "orders")
    assert kept.keys() & NEVER_CARRIED.keys() == set()
    assert own.items() <= kept.items()
    assert kept["RETRY_TOPIC"] == "orders"
    assert kept["ORIGIN_MESSAGE_ID"] == message.offset_msg_id
