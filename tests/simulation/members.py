"""Members of a group, each on a host of its own: rmqd's client and consumer, with a handler that tells the judge."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.handler import Batch
from tests.consumer.groups import handler_of
from tests.simulation.loop import Host, LoopClock, SimulatedLoop

if TYPE_CHECKING:
    from tests.simulation.ledger import Call, Ledger
    from tests.simulation.plan import Habits


class HandlerFailed(Exception):
    """What the handler of a simulation raises."""


class Member:
    """One member. `consumer` is its group's."""

    def __init__(
        self,
        loop: SimulatedLoop,
        name: str,
        nameservers: tuple[str, ...],
        options: ConsumerOptions,
        ledger: Ledger,
        habits: Habits,
        chance: random.Random,
    ) -> None:
        self.name = name
        self.host = Host(loop, name)
        self._loop = loop
        self.hangs = 0
        """How many of the next calls of the handler do not return."""
        self._timeout_seconds = options.consume_timeout_seconds
        self._ledger = ledger
        self._habits = habits
        self._chance = chance
        client_options = ClientOptions(nameservers=nameservers, instance_name=name)
        self._client = self.host.context.run(ClientInstance, client_options, clock=LoopClock())
        self.consumer = self.host.context.run(
            PushConsumer, options, handler_of(self._handle), self._client, LoopClock()
        )
        self.task = self.host.spawn(self._run())

    async def _run(self) -> None:
        client = self._client
        serving = asyncio.create_task(client.run())
        try:
            await self.consumer.run()
        finally:
            client.stop()
            await asyncio.wait((serving,))

    async def _handle(self, batch: Batch) -> None:
        calls = [self._ledger.begin(self.name, message) for message in batch]
        try:
            if self.hangs:
                self.hangs -= 1
                await asyncio.get_running_loop().create_future()
            await self._work(calls)
        except asyncio.CancelledError:
            for call in calls:
                self._ledger.cut_short(call, self._timeout_seconds)
            raise

    async def _work(self, calls: list[Call]) -> None:
        habits = self._habits
        chance = self._chance
        is_slow = habits.slow and chance.random() < habits.slow
        await asyncio.sleep(chance.uniform(0, 4.0 if is_slow else habits.most_seconds))
        fails = habits.fails and chance.random() < habits.fails
        for call in calls:
            self._ledger.end(call, is_good=not fails)
        if fails:
            raise HandlerFailed(self.name)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function of it as its own: later, if it is suspended."""
        self._loop.call_soon(function, context=self.host.context)

    def leave(self) -> None:
        """End in order."""
        self.consumer.stop()

    def kill(self) -> None:
        """End at once."""
        self.host.kill()
