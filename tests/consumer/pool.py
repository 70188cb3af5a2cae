"""The workers of a group without the rest of it, and a broker that accepts messages sent back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.consumer.cache.keyed_process_queue import KeyedProcessQueue
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.canary import Canary
from rmqd.consumer.handling.concurrently import ConsumeMessageConcurrentlyService
from rmqd.consumer.handling.handler_failures import HandlerHungError
from rmqd.consumer.handling.orderly import ConsumeMessageOrderlyService
from rmqd.consumer.handling.send_back import SendBack, reconsume_limit
from rmqd.consumer.handling.slots import HandlerSlots
from rmqd.consumer.services import Ownership
from rmqd.consumer.stats.counters import CanaryStats, TopicStats
from rmqd.handler_api.batch import Batch
from rmqd.runtime.clock import Clock, SystemClock
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import value_reader
from tests.consumer.blocks import block_of, keyed_block
from tests.consumer.groups import GROUP, TOPIC, group_options, handler_of
from tests.consumer.scripted_broker import BROKER, ScriptedBroker

TIMEOUT_SECONDS = 12.0


class Pool:
    """The workers of a group without its pull loops: messages come from the test."""

    def __init__(
        self, service: HandlerSlots, task: asyncio.Task[None], *, is_by_key: bool, canary: Canary | None = None
    ) -> None:
        self.service = service
        self.task = task
        self.is_by_key = is_by_key
        self.canary = canary
        self._stats = (
            TopicStats if canary is None or not canary.is_live else partial(CanaryStats, takes=canary.is_in_share)
        )

    def queue(self, messages: int, number: int = 0) -> ProcessQueue:
        """A queue with messages to hand out."""
        place = MessageQueue(TOPIC, BROKER, number)
        queue = ProcessQueue(place, 0, self._stats(TOPIC, is_retry=False))
        self.give(queue, messages)
        return queue

    def ordered(self, keys: Iterable[str], number: int = 0) -> ProcessQueue:
        """A queue with a message of each key, in a group by keys or in an orderly one."""
        if self.is_by_key:
            return self.keyed(keys, number)
        queue = self.queue(0, number)
        self.give_keys(queue, keys)
        return queue

    def keyed(self, keys: Iterable[str], number: int = 0) -> KeyedProcessQueue:
        """A queue of a group by keys, with a message of each key."""
        place = MessageQueue(TOPIC, BROKER, number)
        queue = KeyedProcessQueue(place, 0, self._stats(TOPIC, is_retry=False), "", value_reader("keys"))
        self.give_keys(queue, keys)
        return queue

    def give_keys(self, queue: ProcessQueue, keys: Iterable[str]) -> None:
        """One more reply for a queue, with a message of each key."""
        block = keyed_block(queue.next_offset, keys, queue.message_queue)
        queue.put(block, queue.next_offset + len(block.messages))
        self.service.submit(queue)

    def give(self, queue: ProcessQueue, messages: int) -> None:
        """One more reply for a queue."""
        start = queue.next_offset
        queue.put(block_of(range(start, start + messages), queue.message_queue), start + messages)
        self.service.submit(queue)


@pytest.fixture
def pool(broker: ScriptedBroker) -> Callable[..., contextlib.AbstractAsyncContextManager[Pool]]:
    """`async with pool(function, is_async=…, clock=…, leases=…, second=…, **options)`; `second` is a canary."""

    @contextlib.asynccontextmanager
    async def start(
        function: Callable[..., Any],
        *,
        is_async: bool = True,
        clock: Clock | None = None,
        leases: Ownership | None = None,
        second: Callable[..., Any] | None = None,
        **values: Any,
    ) -> AsyncIterator[Pool]:
        broker.create_topic(TOPIC, 4)
        client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
        await client.routes.lookup(TOPIC)
        options = group_options(**{"consume_timeout_seconds": TIMEOUT_SECONDS, **values})
        send_back = SendBack(client, GROUP, reconsume_limit(options))
        handler = handler_of(function, is_async=is_async)
        canary = None
        if second is not None:
            canary = Canary(handler_of(second, is_async=is_async), options, clock or SystemClock())
            handler = canary.wrap_handler(handler)
        if options.consume_mode == "orderly" and not options.order_by:
            leases = leases or Ownership()  # no other client locks the queues
        if options.retries_in_place:
            service: HandlerSlots = ConsumeMessageOrderlyService(
                options, handler, send_back, leases, clock or SystemClock()
            )
        else:
            service = ConsumeMessageConcurrentlyService(options, handler, send_back, clock or SystemClock())
        task = asyncio.create_task(service.run())
        try:
            yield Pool(service, task, is_by_key=bool(options.order_by), canary=canary)
        finally:
            task.cancel()
            if canary is not None:
                await canary.stop()
            with contextlib.suppress(asyncio.CancelledError, HandlerHungError):
                await task
            await client.remoting.close()

    return start


StartPool = Callable[..., contextlib.AbstractAsyncContextManager[Pool]]


def handled(queue: ProcessQueue) -> dict[str, int]:
    return {result: count for result, count in queue.stats.snapshot().handled.items() if count}


def done(queue: ProcessQueue) -> Callable[[], bool]:
    return lambda: queue.cached_count == 0 and queue.in_flight == 0


class Gate:
    """A handler that waits until `open` is set, and counts its concurrent calls."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.at_once = self.most = 0
        self.open = asyncio.Event()

    async def __call__(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await self.open.wait()
        finally:
            self.at_once -= 1
