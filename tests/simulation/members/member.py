"""A member as rmqd runs it: its own client and consumer, on its own host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.pending import ClientSnapshot
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
from tests.consumer.groups import handler_of
from tests.simulation.loop import Host, LoopClock, SimulatedLoop
from tests.simulation.members.handling import Handling


class Consumer(Protocol):
    """The consumer of a member."""

    async def run(self) -> None:
        """Run until `stop`."""

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """Stop normally."""

    def force_stop(self) -> None:
        """Stop at once."""

    def pause(self) -> None:
        """Stop handling messages."""

    def resume(self) -> None:
        """Resume."""

    async def change(self, options: ConsumerOptions) -> None:
        """Apply changed options."""


class Member:
    """One member. `consumer` is the consumer of its group."""

    def __init__(
        self,
        loop: SimulatedLoop,
        name: str,
        nameservers: tuple[str, ...],
        options: ConsumerOptions,
        handling: Handling,
    ) -> None:
        self.name = name
        self.host = Host(loop, name)
        self.handling = handling
        self.process_stays = False
        """Whether the process keeps running after the member has left, like one with other groups."""
        self._loop = loop
        self._changing = asyncio.Lock()
        client_options = ClientOptions(nameservers=nameservers, instance_name=name)
        self._client = self.host.context.run(ClientInstance, client_options, clock=LoopClock())
        self.consumer = self.host.context.run(self._new_consumer, options, handling, self._client)
        self.task = self.host.spawn(self._run())

    def _new_consumer(self, options: ConsumerOptions, handling: Handling, client: ClientInstance) -> Consumer:
        self._own = PushConsumer(options, handler_of(handling), client)
        return self._own

    def snapshot(self) -> GroupSnapshot | None:
        """Return the group's snapshot; None for a member of another client."""
        return self._own.snapshot()

    async def _run(self) -> None:
        client = self._client
        serving = asyncio.create_task(client.run())
        try:
            await self.consumer.run()
        finally:
            if not self.process_stays:
                client.stop()
                await asyncio.wait((serving,))

    def figures(self) -> ClientSnapshot:
        """Return the client's counters."""
        return self._client.snapshot()

    def queues(self, topic: str) -> list[tuple[str, int]]:
        """Return broker and number of each queue of a topic that the member owns."""
        queues = (one for one in self._own.snapshot().queues if not one.is_retry and one.position is not None)
        return [(one.broker, one.queue) for one in queues if one.topic == topic]

    @property
    def is_balanced(self) -> bool:
        """Whether the first rebalance is over, so that the member has started in its queues."""
        return self._own.assignments() is not None

    async def change(self, options: ConsumerOptions) -> None:
        """Apply changed options, as a reload does, one change after the other."""
        async with self._changing:
            await self.consumer.change(options)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the member's host: later, if the host is suspended."""
        self._loop.call_soon(function, context=self.host.context)

    def leave(self) -> None:
        """Stop normally."""
        self.consumer.stop()

    def kill(self) -> None:
        """Kill the member."""
        self.host.kill()
