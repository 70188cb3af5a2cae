"""A handler that keeps calls open to gather messages, and is notified when something waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.consumer.health.watchdog import CHECK_INTERVAL_SECONDS, STALL_SECONDS
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC, Gathering
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"concurrency": 2, "consume_message_batch_max_size": 4}, 40),  # all slots are taken
        ({"pull_threshold_for_queue": 10, "pull_batch_size": 8, "consume_message_batch_max_size": 8}, 60),
        ({"consume_concurrently_max_span": 10, "pull_batch_size": 8, "consume_message_batch_max_size": 8}, 60),
    ],
)
async def test_kept_calls_do_not_stall_a_queue(
    broker: ScriptedBroker, flowing: ManualClock, options: dict[str, Any], messages: int
) -> None:
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, *[b"x"] * messages)
    handle = Gathering()
    async with member(broker.peer.address, handle, clock=flowing, **options):
        # the last messages hold nothing up
        await eventually(lambda: handle.handled >= messages - 20 or None, "all but the last are handled")


async def test_kept_calls_end_with_the_group_and_are_committed(broker: ScriptedBroker, flowing: ManualClock) -> None:
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, *[b"x"] * 5)
    handle = Gathering()
    async with member(broker.peer.address, handle, clock=flowing) as m:
        await eventually(lambda: ((q := m.queue()) and q.handling == 5) or None, "the handler has them")
        await m.stop(shutdown_timeout_seconds=30.0)
        assert handle.handled == 5
    await broker.committed(GROUP, queue, 5)


@pytest.mark.parametrize("options", [{"consume_mode": "orderly"}, {"order_by": "keys"}], ids=["orderly", "order_by"])
async def test_kept_calls_end_while_messages_wait_behind_them_for_their_order(
    broker: ScriptedBroker, flowing: ManualClock, options: dict[str, Any]
) -> None:
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, *[b"x"] * 20, properties={"KEYS": "k"})
    handle = Gathering()
    async with member(broker.peer.address, handle, clock=flowing, consume_message_batch_max_size=4, **options):
        await eventually(lambda: handle.handled >= 16 or None, "all but the last batch are handled")


async def test_calls_stay_open_while_nothing_waits_for_them(broker: ScriptedBroker, flowing: ManualClock) -> None:
    """The queue does not count as stalled."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, *[b"x"] * 5)
    handle = Gathering()
    async with member(broker.peer.address, handle, clock=flowing) as m:
        await eventually(lambda: ((q := m.queue()) and q.handling) or None, "the handler has them")
        # a pull that this broker holds fails soon after
        await flowing.sleep(STALL_SECONDS + 3 * CHECK_INTERVAL_SECONDS)
        assert (handle.told, handle.handled) == (0, 0)
        shown = m.queue()
        assert shown is not None
        assert shown.stall is None
