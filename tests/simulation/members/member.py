"""A member as rmqd runs it: its own client and consumer, on a host of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.push_consumer import PushConsumer
from tests.consumer.groups import handler_of
from tests.simulation.loop import Host, LoopClock, SimulatedLoop
from tests.simulation.members.handling import Handling


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
        self._loop = loop
        self._changing = asyncio.Lock()
        client_options = ClientOptions(nameservers=nameservers, instance_name=name)
        self._client = self.host.context.run(ClientInstance, client_options, clock=LoopClock())
        self.consumer = self.host.context.run(PushConsumer, options, handler_of(handling), self._client, LoopClock())
        self.task = self.host.spawn(self._run())

    async def _run(self) -> None:
        client = self._client
        serving = asyncio.create_task(client.run())
        try:
            await self.consumer.run()
        finally:
            client.stop()
            await asyncio.wait((serving,))

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
