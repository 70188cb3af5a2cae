"""Whether a group is new, or a queue came to a known group later: decided by what is stored, not by this process.

A queue without an offset may mean three things. The group is new, and begins where `consume_from_where` says. The queue
is: the topic has grown, a broker was added, a topic was made; then nothing in it may be passed over, whether or not the
group ran meanwhile. Or another member is about to begin there. So a new group is founded at once: the member that finds
no offset anywhere stores the start of every queue in the topics' first routes, not only of its own share. From then on
a queue without an offset came later.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import structlog

from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.consumer.founding.start_offset import Start, StartPolicy
from rmqd.consumer.options import ConsumerOptions
from rmqd.errors import RmqdError, RouteNotFoundError
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

AWAY_SECONDS = 60.0  # that a broker of the first routes may be silent before a new group begins without it
CLOCKS_APART_MS: Final = 60_000  # what our clock may be ahead of a broker's
QUESTIONS: Final = 32  # under way at once at one broker


class Founding(ABC):
    """Decides where one group begins in queues for which it has no offset."""

    def __init__(
        self, client: ClientInstance, options: ConsumerOptions, clock: Clock, *, leaves_brokers_out: bool = True
    ) -> None:
        started_ms = int(clock.wall() * 1000)
        self.policy = StartPolicy(client, options.consume_from_where, options.consume_timestamp_ms or 0, started_ms)
        self.client = client
        self.clock = clock
        self._topics = tuple(options.subscriptions)
        self._first: dict[str, frozenset[MessageQueue]] = {}  # the queues of each topic's first route
        self._turn = asyncio.Lock()
        self._leaves_brokers_out = leaves_brokers_out
        self._is_known = options.consume_from_where == "first_offset"  # then a new group and a new queue begin alike
        self._began: float | None = None
        self._owed: dict[MessageQueue, int] = {}  # left out, and when (Unix milliseconds): their broker was away
        self._starts: dict[MessageQueue, Start] = {}  # decided here

    def note_route(self, topic: str) -> None:
        """Note a topic's first route: its present queues, or none if name servers do not know the topic."""
        self._first.setdefault(topic, frozenset(self.client.routes.queues(topic)))

    async def start(self, queue: MessageQueue, stored: int | None) -> Start:
        """Where to begin in a queue; `stored` is the group's offset of it, if it has one.

        Raises RmqdError where that cannot be known yet.
        """
        if stored is None:
            await self.ensure()
            stored, decided = await self.stored(queue), self._starts.get(queue)
            if decided is not None and stored in (None, decided.offset):
                return Start(decided.offset, decided.why, is_stored=stored is not None)
        if stored is not None:
            return Start(stored, "committed", is_stored=True)
        if (owed_ms := self._owed.get(queue)) is not None:
            return await self._owed_start(queue, owed_ms)
        return await self.policy.of_later_queue(queue)

    async def ensure(self) -> None:
        """Found the group if it is new. Raises RmqdError."""
        async with self._turn:
            if not self._is_known:
                self._began = self.clock.monotonic() if self._began is None else self._began
                await self._found(await self._first_queues())
                self._is_known = True

    def is_owed(self, queue: MessageQueue) -> bool:
        """Whether the queue was in a first route, but its start could not be stored: it is no later queue."""
        return queue in self._owed

    @abstractmethod
    async def stored(self, queue: MessageQueue) -> int | None:
        """The group's offset of a queue, as it is now; None if it has none. Raises RmqdError."""

    @abstractmethod
    async def _found(self, first: list[MessageQueue]) -> None:
        """Store the start of these queues if the group is new."""

    def _be_patient(self, failed: Mapping[str, RmqdError]) -> None:
        """Raise the error of a broker that fails, for a while: it may know the group, and may come back."""
        waited = 0.0 if self._began is None else self.clock.monotonic() - self._began
        if failed and (waited < AWAY_SECONDS or not self._leaves_brokers_out):
            raise next(iter(failed.values()))

    def _owe(self, queues: Iterable[MessageQueue]) -> None:
        """Leave these queues out of the founding, as their brokers are away, and remember when that was."""
        now_ms = int(self.clock.wall() * 1000)
        for queue in queues:
            self._owed[queue] = now_ms
            log.warning("queue.not_founded", queue=str(queue))

    async def _owed_start(self, queue: MessageQueue, owed_ms: int) -> Start:
        """The start that the queue would have had with the others; its end at that time is looked up by the time."""
        if self.policy.where == "last_offset":
            return Start(await self.policy.search(queue, owed_ms - CLOCKS_APART_MS), "last_offset")
        return await self.policy.of_new_group(queue)

    async def _at_brokers(
        self, queues: Iterable[MessageQueue], action: Callable[[MessageQueue], Awaitable[None]]
    ) -> dict[str, RmqdError]:
        """Run an action for each queue, at all brokers at once. Returns the brokers' failures by broker name.

        A broker's first failure ends the actions for its queues: each of them would take as long to fail.
        """
        failed: dict[str, RmqdError] = {}

        async def at(name: str, own: list[MessageQueue]) -> None:
            for start in range(0, len(own), QUESTIONS):
                results = await asyncio.gather(*map(action, own[start : start + QUESTIONS]), return_exceptions=True)
                for error in results:
                    if isinstance(error, RmqdError):
                        failed[name] = error
                        return
                    if error is not None:
                        raise error

        await asyncio.gather(*(at(name, own) for name, own in self.client.routes.by_endpoint(queues).items()))
        return failed

    async def _first_queues(self) -> list[MessageQueue]:
        """The queues of the first routes that still exist. A topic that had no route at first has none here."""
        for topic in self._topics:
            if topic not in self._first:
                with contextlib.suppress(RouteNotFoundError):
                    await self.client.routes.lookup(topic)
                self.note_route(topic)
        present = [queue for topic in self._topics for queue in self.client.routes.queues(topic)]
        return [queue for queue in present if queue in self._first[queue.topic]]
