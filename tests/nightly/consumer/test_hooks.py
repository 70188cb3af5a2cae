"""Hooks: told of every batch, choosing what handlers get, and never in the way."""

from __future__ import annotations

import threading

import pytest

from rmqd import MessageQueue
from tests.consumer.groups import GROUP
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.test_hooks import Consuming, Recording, hook
from tests.seen import Seen
from tests.waiting import eventually


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_group_with_a_broken_hook_consumes_as_without(
    broker: ScriptedBroker, queue: MessageQueue, is_async: bool
) -> None:
    """Sync handlers' hooks run in the handlers' threads."""
    seen = Seen()
    await broker.store(queue, b"1", b"2", b"3")
    recording = Recording("after")
    async with Consuming(broker, seen.handler(is_async=is_async), hook(recording), is_async=is_async) as consumer:
        await broker.committed(GROUP, queue, 3)
        await eventually(lambda: consumer.snapshot().hook_failures == {"recording": 3}, "the failures are counted")
    assert sorted(seen.bodies) == [b"1", b"2", b"3"]
    assert (threading.get_ident() in recording.threads) is is_async
    assert broker.sent_back == []
