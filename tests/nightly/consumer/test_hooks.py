"""Hooks: called for every batch, and without effect on consumption if they fail."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rmqd import Batch, MessageQueue
from rmqd.consumer.hooks import HookContext
from tests.consumer.groups import GROUP
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.test_hooks import Consuming, Recording, call, handler, hook, hooks
from tests.handlers.messages import make_batch, make_message
from tests.seen import Seen
from tests.waiting import eventually


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_broken_hook_does_not_affect_consumption(
    broker: ScriptedBroker, queue: MessageQueue, is_async: bool
) -> None:
    """The hooks of synchronous handlers run in the handlers' threads."""
    seen = Seen()
    await broker.store(queue, b"1", b"2", b"3")
    recording = Recording("after")
    async with Consuming(broker, seen.handler(is_async=is_async), hook(recording), is_async=is_async) as consumer:
        await broker.committed(GROUP, queue, 3)
        await eventually(lambda: consumer.snapshot().hook_failures == {"recording": 3}, "the failures are counted")
    assert sorted(seen.bodies) == [b"1", b"2", b"3"]
    assert (threading.get_ident() in recording.threads) is is_async
    assert broker.sent_back == []


async def test_after_batch_hooks_run_in_reverse_order() -> None:
    order: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def before_batch(self, batch: Batch, context: HookContext) -> None:
            order.append(f"before {self.name}")

        def after_batch(self, batch: Batch, context: HookContext) -> None:
            order.append(f"after {self.name}")

    loaded = hooks(hook(Named("a")), hook(Named("b"))).wrap_handler(handler(is_async=True))
    await call(loaded, make_batch(make_message(b"one")))
    assert order == ["before a", "before b", "after b", "after a"]


async def test_an_expired_batch_is_reported_as_cut_short(broker: ScriptedBroker, queue: MessageQueue) -> None:
    recording = Recording()

    async def handle(batch: Batch) -> None:
        await asyncio.sleep(60)

    await broker.store(queue, b"1")
    async with Consuming(broker, handle, hook(recording), consume_timeout_seconds=0.1):
        await eventually(lambda: broker.sent_back, "it is sent back")
    assert [(name, context.outcome) for name, context in recording.calls][-1] == ("after", "cut_short")
