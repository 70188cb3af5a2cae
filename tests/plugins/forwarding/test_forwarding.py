"""The handler `rocketmq`: unchanged copies, in the order of each key, and no endless forwarding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rmqd import Message
from rmqd.plugins.rocketmq_handler import RocketMq
from rmqd.testing import RocketMQ, RunResult


@pytest.fixture
def here() -> Iterator[RocketMQ]:
    """The cluster of the group."""
    with RocketMQ() as running:
        running.create_topic("orders", queues=2)
        yield running


@pytest.fixture
def there() -> Iterator[RocketMQ]:
    """Another cluster."""
    with RocketMQ() as running:
        running.create_topic("orders", queues=4)
        yield running


def forward(here: RocketMQ, to: RocketMQ, **options: Any) -> RunResult:
    """Run the handler in a cluster until all its messages are handled."""
    given = {"nameserver": to.nameserver, **options}
    keys: dict[str, Any] = {"consume_mode": "orderly", "consume_message_batch_max_size": 32}
    return here.run_handler(RocketMq, topic="orders", group="mirror", options=given, **keys)


def place(message: Message) -> tuple[int, int]:
    return message.queue_id, message.queue_offset


def test_a_message_is_the_same_in_another_cluster(here: RocketMQ, there: RocketMQ) -> None:
    sent = here.send("orders", b"\xff", keys="k1 k2", tags="paid", properties={"region": "eu"}, sharding_key="ada")
    [original] = here.messages("orders")
    forward(here, there)

    [copy] = there.messages("orders")
    assert (copy.body, copy.keys, copy.tags, copy.msg_id) == (b"\xff", "k1 k2", "paid", sent.msg_id)
    assert copy.born_timestamp == original.born_timestamp
    own = {name: value for name, value in copy.properties.items() if name != "RMQD_HOPS"}
    assert own.items() >= {"region": "eu", "__SHARDINGKEY": "ada"}.items()
    assert copy.properties["RMQD_HOPS"] == "1"


@pytest.mark.parametrize("order_by", ["sharding_key", "property:customer", "keys"])
def test_messages_of_one_key_keep_their_order(here: RocketMQ, there: RocketMQ, order_by: str) -> None:
    for number in range(60):
        name = f"customer-{number % 5}"
        here.send("orders", str(number), keys=name, properties={"customer": name}, sharding_key=name)
    forward(here, there, order_by=order_by)

    queues: dict[str | None, set[int]] = {}
    numbers: dict[str | None, list[int]] = {}
    for copy in sorted(there.messages("orders"), key=place):
        queues.setdefault(copy.keys, set()).add(copy.queue_id)
        numbers.setdefault(copy.keys, []).append(int(copy.body))
    assert all(len(of_one) == 1 for of_one in queues.values())
    assert len(set.union(*queues.values())) > 1
    assert numbers == {f"customer-{n}": list(range(n, 60, 5)) for n in range(5)}


def test_a_queue_keeps_its_order(here: RocketMQ, there: RocketMQ) -> None:
    for number in range(40):
        here.send("orders", str(number), queue_id=number % 2)
    forward(here, there, order_by="queue")

    numbers = [int(copy.body) for copy in sorted(there.messages("orders"), key=place)]
    assert [number for number in numbers if number % 2 == 0] == list(range(0, 40, 2))
    assert [number for number in numbers if number % 2 == 1] == list(range(1, 40, 2))


def test_two_clusters_that_mirror_each_other_forward_each_message_once(here: RocketMQ, there: RocketMQ) -> None:
    here.send("orders", b"from here")
    there.send("orders", b"from there")
    for _ in range(3):
        forward(here, there)
        forward(there, here)

    for cluster in (here, there):
        assert sorted(bytes(message.body) for message in cluster.messages("orders")) == [b"from here", b"from there"]
