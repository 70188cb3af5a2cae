"""A member as rmqd runs it: its own client and consumer, on a host of its own."""

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
    """What a member runs."""

    async def run(self) -> None:
        """Take part until `stop`."""

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """End in order."""

    def force_stop(self) -> None:
        """End at once."""

    def pause(self) -> None:
        """Handle nothing more."""

    def resume(self) -> None:
        """Go on."""

    async def change(self, options: ConsumerOptions) -> None:
        """Go on with other options."""


class Member:
    """One member. `consumer` is its group's."""

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
        """Whether its process goes on when it has left, as one that has other groups too."""
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
        """What it counts and has; None of a member that is not rmqd's."""
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
        """What its client counts."""
        return self._client.snapshot()

    def queues(self, topic: str) -> list[tuple[str, int]]:
        """The brokers and numbers of the queues of a topic that it has taken over, and not given up."""
        queues = (one for one in self._own.snapshot().queues if not one.is_retry and one.position is not None)
        return [(one.broker, one.queue) for one in queues if one.topic == topic]

    @property
    def is_balanced(self) -> bool:
        """Whether it has divided the queues once, and so begun in its own."""
        return self._own.assignments() is not None

    async def change(self, options: ConsumerOptions) -> None:
        """Take over other options, as by a reload: one after the other."""
        async with self._changing:
            await self.consumer.change(options)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function of it as its own: later, if it is suspended."""
        self._loop.call_soon(function, context=self.host.context)

    def leave(self) -> None:
        """End in order."""
        self.consumer.stop()

    def kill(self) -> None:
        """End at once."""
        self.host.kill()
