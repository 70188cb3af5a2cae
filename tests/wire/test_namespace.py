"""Names with a namespace, as brokers use them, and without it, as operators and handlers use them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.properties import RETRY_TOPIC
from rmqd.wire.topics import without_namespace


@dataclass(frozen=True, slots=True)
class Thing:
    """Stands for a dataclass of a snapshot."""

    name: str
    parts: tuple[str, ...]
    counts: dict[str, int]


SHOWN = [
    ("shop%orders", "orders"),
    ("%RETRY%shop%mailer", "%RETRY%mailer"),
    ("topic[shop%orders] not exist, group shop%mailer", "topic[orders] not exist, group mailer"),
    ("shop%orders@broker-a:0", "orders@broker-a:0"),
    ("%RETRY%shop%mailer_shop%orders@broker-a:0", "%RETRY%mailer_orders@broker-a:0"),
    ("no %RETRY%shop%mailer+shop%orders, shop%b", "no %RETRY%mailer+orders, b"),
    ("workshop%orders", "workshop%orders"),
    ("my_shop%orders", "my_shop%orders"),
    ("my-shop%orders", "my-shop%orders"),
    (("shop%a", ["shop%b"], {"shop%c"}), ("a", ["b"], {"c"})),
    (Thing("shop%a", ("shop%b", "c"), {"shop%d": 1}), Thing("a", ("b", "c"), {"d": 1})),
    (None, None),
    (7, 7),
]


def test_the_namespace_is_removed_from_all_names_in_a_value(subtests: pytest.Subtests) -> None:
    for known, shown in SHOWN:
        with subtests.test(known=known):
            assert without_namespace(known, "shop") == shown
            assert without_namespace(known, "") is known


def test_a_message_has_its_topic_without_the_namespace() -> None:
    """Also after pickling. The topics for requests to brokers keep the namespace."""
    record = encode_message(StoredMessage(topic="shop%orders", queue_id=0, body=b"x"))
    block = decode_messages(record, MessageQueue("shop%orders", "a", 0), namespace="shop")
    for message in (block.messages[0], pickle.loads(pickle.dumps(block.messages[0]))):
        assert (message.topic, message.message_queue) == ("orders", MessageQueue("orders", "a", 0))
        assert (message.origin_topic, message.record_topic) == ("shop%orders", "shop%orders")


def test_a_retried_message_has_its_original_topic_without_the_namespace() -> None:
    stored = StoredMessage(topic="%RETRY%shop%m", queue_id=0, body=b"x", properties={RETRY_TOPIC: "shop%orders"})
    block = decode_messages(encode_message(stored), MessageQueue("%RETRY%shop%m", "a", 0), namespace="shop")
    (message,) = block.messages
    assert (message.topic, message.message_queue.topic) == ("orders", "%RETRY%m")
    assert message.origin_topic == "shop%orders"
