"""Topics with priorities on the embedded broker, as in 5.5.0: each priority has a queue, and pops read it first."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from tests.broker.peer import Peer, connected
from tests.broker.popping import popped
from tests.clock import ManualClock
from tests.nightly.broker.asking import Asking

PRIORITY = "_SYS_MSG_PRIORITY_"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def peer(embedded: EmbeddedRocketMQ) -> Any:
    """A connection to the broker, which has a topic P of 4 queues with priorities."""
    async with connected(embedded.broker.address) as broker, connected(embedded.nameserver) as name_server:
        await Asking(embedded, broker, name_server).create("P", 4, attributes="+message.type=PRIORITY")
        yield broker


def change(embedded: EmbeddedRocketMQ, **settings: str) -> None:
    """Change settings of the broker."""
    embedded.broker.change_settings(embedded.broker.settings.changed(settings))


async def send_priorities(peer: Peer, *priorities: int) -> None:
    """Send a message for each priority. The body is the priority."""
    for priority in priorities:
        await peer.send("P", str(priority).encode(), 0, **{PRIORITY: str(priority)})


async def popped_texts(peer: Peer, **changed: Any) -> list[str]:
    """Return the bodies in the order of the pop."""
    return [got.text for got in await popped(peer, "P", **changed)]


@pytest.mark.parametrize("topic", ["P", "T"])
@pytest.mark.parametrize(("priority", "queue"), [("0", "0"), ("2", "2"), ("3", "3"), ("99", "3")])
async def test_a_priority_selects_the_queue_in_any_topic(peer: Peer, topic: str, priority: str, queue: str) -> None:
    reply = await peer.send(topic, b"a", 1, **{PRIORITY: priority})

    assert reply.ext_fields["queueId"] == queue


@pytest.mark.parametrize("priority", ["-1", "high"])
async def test_an_invalid_priority_does_not_change_the_queue(peer: Peer, priority: str) -> None:
    reply = await peer.send("P", b"a", 1, **{PRIORITY: priority})

    assert reply.ext_fields["queueId"] == "1"


@pytest.mark.parametrize("other", [{"__SHARDINGKEY": "k"}, {"TIMER_DELAY_SEC": "1"}, {"DELAY": "1"}])
async def test_a_message_of_another_kind_loses_its_priority(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock, other: dict[str, str]
) -> None:
    await peer.send("P", b"a", 1, **{PRIORITY: "3", **other})
    clock.turn(3)
    embedded.broker.schedule.wake()

    [got] = await popped(peer, "P")

    assert (got.message.queue_id, PRIORITY in got.message.properties) == (1, False)


async def test_pops_take_the_highest_priority_first(peer: Peer) -> None:
    await send_priorities(peer, 0, 2, 1, 3, 2)

    one_by_one = [await popped_texts(peer, max_msg_nums=1) for _ in range(3)]

    assert one_by_one == [["3"], ["2"], ["2"]]
    assert await popped_texts(peer) == ["1", "0"]


async def test_the_first_queue_can_have_the_highest_priority(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    change(embedded, priorityOrderAsc="false")
    await send_priorities(peer, 2, 0, 3, 1)

    assert await popped_texts(peer) == ["0", "1", "2", "3"]


async def test_a_group_may_pop_without_priorities_at_times(
    embedded: EmbeddedRocketMQ, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a random number is at least the group's priority.factor, the pop starts at any queue."""
    embedded.broker.groups.put(SubscriptionGroupConfig(group_name="g", attributes={"priority.factor": "50"}))
    await send_priorities(peer, *range(4), *range(4))

    monkeypatch.setattr("rmqd.broker.processors.pop_processor.random.randrange", lambda sides: 49)
    by_priority = await popped_texts(peer, max_msg_nums=4)
    monkeypatch.setattr("rmqd.broker.processors.pop_processor.random.randrange", lambda sides: 50)
    by_turns = await popped_texts(peer, max_msg_nums=4)

    assert by_priority == ["3", "3", "2", "2"]
    assert by_turns == ["1", "1", "0", "0"]


async def expire(embedded: EmbeddedRocketMQ, clock: ManualClock) -> None:
    """Let the invisible time of popped messages end."""
    clock.turn(60)
    embedded.broker.schedule.wake()


@pytest.mark.parametrize(("probability", "at"), [("0", -1), ("100", 0)])
async def test_retries_come_last_or_first(
    embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock, probability: str, at: int
) -> None:
    change(embedded, popFromRetryProbabilityForPriority=probability)
    await send_priorities(peer, *range(4))
    [first] = await popped_texts(peer, max_msg_nums=1)
    await expire(embedded, clock)

    got = await popped_texts(peer)

    assert (first, len(got), got[at]) == ("3", 4, "3")


async def test_retries_can_keep_their_queues(embedded: EmbeddedRocketMQ, peer: Peer, clock: ManualClock) -> None:
    change(embedded, useSeparateRetryQueue="true", popFromRetryProbabilityForPriority="100")
    await send_priorities(peer, *range(4))
    await popped_texts(peer)
    await expire(embedded, clock)

    again = await popped(peer, "P")

    assert [(got.text, got.message.queue_id, got.message.queue_offset) for got in again] == [
        ("3", 3, 0), ("2", 2, 0), ("1", 1, 0), ("0", 0, 0),
    ]  # fmt: skip


async def test_the_retry_topic_gets_new_queues_with_the_topic(embedded: EmbeddedRocketMQ, clock: ManualClock) -> None:
    change(embedded, useSeparateRetryQueue="true")
    async with connected(embedded.broker.address) as peer, connected(embedded.nameserver) as name_server:
        operator = Asking(embedded, peer, name_server)
        await operator.create("P", 2, attributes="+message.type=PRIORITY")
        await send_priorities(peer, 0, 1)
        await popped_texts(peer)
        await expire(embedded, clock)
        await operator.create("P", 4, attributes="+message.type=PRIORITY")
        await send_priorities(peer, 2, 3)
        assert await popped_texts(peer) == ["3", "2", "1", "0"]
        await expire(embedded, clock)

        again = await popped(peer, "P")

    assert [got.message.queue_id for got in again] == [3, 2, 1, 0]
    retries = embedded.broker.topics.get("%RETRY%g_P")
    assert retries is not None
    assert (retries.read_queue_nums, retries.write_queue_nums) == (4, 4)
