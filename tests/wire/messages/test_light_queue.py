"""Light message queues: pulled messages have their offsets in the pulled queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqd.wire.bodies.route_data import BrokerData, ClusterInfo, light_queue_route
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message

pytestmark = pytest.mark.usefixtures("each_core")
QUEUE = MessageQueue("%LMQ%b", "broker-a", 0)
STORED = StoredMessage(topic="parent", body=b"x", queue_id=3, queue_offset=777)


def stored(names: str, offsets: str) -> bytes:
    properties = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
    return encode_message(replace(STORED, properties=properties))


def test_messages_have_their_offsets_in_the_pulled_queue() -> None:
    """A message has an offset for each queue that it names. The offset in its own topic is ignored here."""
    block = frame_messages(stored("%LMQ%a,%LMQ%b", "5,8") + stored("%LMQ%b", "9") + stored("%LMQ%b,c", "11,2"), QUEUE)

    assert [message.queue_offset for message in block.messages] == [8, 9, 11]
    assert {(message.topic, message.queue_id) for message in block.messages} == {("parent", 0)}
    assert (block.runs, block.unfinished, block.corrupt) == (2, 3, [])


REFUSED = [
    ("%LMQ%a", "5", "its INNER_MULTI_DISPATCH does not contain %LMQ%b"),
    ("%LMQ%a,%LMQ%b", "5", "its INNER_MULTI_QUEUE_OFFSET has no offset for %LMQ%b"),
    ("%LMQ%a,%LMQ%b", "5,x", "its INNER_MULTI_QUEUE_OFFSET has no offset for %LMQ%b"),
    ("%LMQ%b", "9" * 5000, f"the offset for %LMQ%b must be an integer, not '{'9' * 79}"),
]


def test_a_message_without_an_offset_in_the_pulled_queue_is_corrupt(subtests: pytest.Subtests) -> None:
    """With the offset in its own topic, another message would be committed."""
    for names, offsets, reason in REFUSED:
        with subtests.test(names=names):
            block = frame_messages(stored(names, offsets) + stored("%LMQ%b", "9"), QUEUE)

            assert [message.queue_offset for message in block.messages] == [9]
            assert [one.reason for one in block.corrupt] == [reason]


def test_the_route_has_a_read_only_queue_0_on_every_broker() -> None:
    brokers = {name: BrokerData("c", name, {0: f"{name}:1"}) for name in ("b", "a")}
    route = light_queue_route(ClusterInfo(brokers, {"c": ("a", "b")}))

    assert [(each.broker_name, each.read_queue_nums, each.is_writeable) for each in route.queue_datas] == [
        ("a", 1, False),
        ("b", 1, False),
    ]
    assert route.broker_datas == (brokers["a"], brokers["b"])
