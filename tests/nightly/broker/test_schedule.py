"""Delay levels of the embedded broker: order of delivery, changed levels and errors.

The core of these tests is in test_delay_levels.py.
"""

from __future__ import annotations

import asyncio

import pytest
import structlog

from rmqd.broker.broker_settings import BrokerSettings, UnknownSettingError
from rmqd.broker.peer_channel import Refusal
from rmqd.codes import ResponseCode
from rmqd.errors import ProtocolError
from rmqd.wire.messages.encode import StoredMessage
from tests.broker.stores import bodies, in_memory
from tests.clock import ManualClock
from tests.nightly.broker.test_delay_levels import (
    delayed,
    running,
    service,
)


def test_messages_of_several_levels_are_delivered_in_order_of_time() -> None:
    clock = ManualClock()
    store = in_memory(clock=clock)
    schedule = service(store, clock)
    for level, name in ((4, "30 s"), (1, "1 s"), (3, "10 s")):
        schedule.put(delayed(level, name))
    clock.turn(0.5)
    schedule.put(delayed(1, "1 s later"))

    found = []
    while (due := schedule.next_due()) is not None:
        clock.turn(due - clock.wall())
        schedule.wake()
        found.append(bodies(store, "T", 2)[-1])

    assert found == ["1 s", "1 s later", "10 s", "30 s"]


def test_a_burst_is_delivered_in_several_steps() -> None:
    clock = ManualClock()
    store = in_memory(clock=clock)
    schedule = service(store, clock)
    for number in range(1500):
        schedule.put(delayed(1, str(number)))
    clock.turn(1)

    schedule.wake()

    assert 0 < len(bodies(store, "T", 2)) < 1500
    due = schedule.next_due()
    assert due is not None
    assert due <= clock.wall()
    schedule.wake()
    assert bodies(store, "T", 2) == [str(number) for number in range(1500)]


@pytest.mark.parametrize("level", ["x", "1.5", " 2"])
def test_a_level_that_is_not_a_number_is_rejected(level: str) -> None:
    clock = ManualClock()
    store = in_memory(clock=clock)
    schedule = service(store, clock)

    with pytest.raises(ProtocolError, match="DELAY"):
        schedule.put(delayed(level))
    assert store.end == 0


def test_levels_may_change_while_messages_wait() -> None:
    """No message then waits longer than the new level says."""
    clock = ManualClock()
    store = in_memory(clock=clock)
    schedule = service(store, clock)
    schedule.put(delayed(18, "two hours"))
    assert schedule.next_due() == clock.wall() + 7200

    schedule.change_settings(BrokerSettings(messageDelayLevel=" ".join(["1s"] * 18)))
    schedule.put(delayed(18, "a second"))

    schedule.wake()
    assert bodies(store, "T", 2) == ["two hours"]
    clock.turn(1)
    schedule.wake()
    assert bodies(store, "T", 2) == ["two hours", "a second"]


def test_messages_of_a_removed_level_are_delivered() -> None:
    clock = ManualClock()
    store = in_memory(clock=clock)
    schedule = service(store, clock)
    schedule.put(delayed(18))

    schedule.change_settings(BrokerSettings(messageDelayLevel="1s 2m"))
    schedule.wake()

    assert bodies(store, "T", 2) == ["x"]


@pytest.mark.parametrize("levels", ["", "1", "s", "1s,2s", "1s 2x", "-1s"])
def test_invalid_levels_are_rejected(levels: str) -> None:
    clock = ManualClock()
    schedule = service(in_memory(clock=clock), clock)

    with pytest.raises(UnknownSettingError, match="messageDelayLevel"):
        schedule.change_settings(BrokerSettings(messageDelayLevel=levels))
    schedule.put(delayed(18))
    assert schedule.next_due() == clock.wall() + 7200


async def test_delivery_is_retried_after_the_store_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example while the disk is full. Messages delivered before are not delivered again."""
    clock = ManualClock()
    store = in_memory(clock=clock)
    schedule = service(store, clock)
    for body in "abc":
        schedule.put(delayed(1, body))
    clock.turn(1)
    put, refusals, come = store.put, iter([False, True, True]), asyncio.Event()

    def hesitant(message: StoredMessage, tags_code: int | None = None) -> object:
        if next(refusals, False):
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full")
        if message.body == b"c":
            come.set()
        return put(message, tags_code)

    monkeypatch.setattr(store, "put", hesitant)
    with structlog.testing.capture_logs() as logs:
        async with running(schedule):
            await clock.until(come.is_set, "the last message is delivered")

    assert bodies(store, "T", 2) == ["a", "b", "c"]
    assert [entry["event"] for entry in logs] == ["broker.delivery_failed"] * 2
