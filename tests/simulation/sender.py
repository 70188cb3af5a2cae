"""The sender of the trials' messages. It reports messages that reached a handler too late."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.errors import RmqdError
from tests.simulation.judging.wrong import Wrong
from tests.simulation.loop import Host, LoopClock
from tests.simulation.names import LANE, TOPIC, lane_of

if TYPE_CHECKING:
    from tests.simulation.history import History


class Sender:
    """Sends the messages of trials with its own client."""

    def __init__(self, history: History) -> None:
        self.sent: dict[str, float] = {}
        """When each message of the current trial was stored, by its key."""
        self._history = history
        self._count = 0
        self._host = Host(history.loop, "trials")
        options = ClientOptions(nameservers=history.nameservers, instance_name="t")
        self._client = self._host.context.run(ClientInstance, options, clock=LoopClock())
        self._running = self._host.spawn(self._client.run())

    async def send(self, rounds: int) -> None:
        """Send about `rounds` messages to each queue."""
        await self._host.spawn(self._send(rounds * sum(self._history.most_queues)))

    async def _send(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            key = f"t{self._count}"
            with contextlib.suppress(RmqdError):
                lane = {LANE: lane_of(key)}
                await self._client.producer.send(OutgoingMessage(TOPIC, b"x", tags="a", keys=key, properties=lane))
                self._history.sent.add(key)
                self.sent[key] = self._history.timeline.now()

    def late(self, name: str, late_seconds: float) -> Iterator[Wrong]:
        """Report messages of a trial that reached a handler too late, or not yet."""
        for (key, at), ledger in itertools.product(self.sent.items(), self._history.ledgers):
            began = min((call.began for call in ledger.calls.get(key, ())), default=None)
            if began is None or began > at + late_seconds:
                when = "not begun" if began is None else f"begun at {began:.3f} s"
                yield Wrong("late", f"{key}, sent at {at:.3f} s, was {when} ({name})", frozenset((key,)))

    async def end(self) -> None:
        """Stop the client."""
        self._host.context.run(self._client.stop)
        await asyncio.wait((self._running,))
