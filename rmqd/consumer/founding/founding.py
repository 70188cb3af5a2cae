"""Decides whether a group is new, or a queue was added to an existing group. Stored offsets decide, not this process.

A queue without an offset has three possible reasons. First: the group is new and starts as `consume_from_where`
specifies. Second: the queue is new, because a topic grew or was created or a broker was added. Then no message in it
may be skipped, even if the group was not running. Third: another member is about to start there. To distinguish these,
the first member, which finds no offset of the group at all, stores at once the start offset of every queue in the
topics' first routes, including other members' queues. From then on a queue without an offset was added later.
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

AWAY_SECONDS = 60.0  # how long an unreachable broker of the first routes delays a new group
CLOCKS_APART_MS: Final = 60_000  # tolerance for our clock being ahead of a broker's
QUESTIONS: Final = 32  # concurrent requests to one broker


class Founding(ABC):
    """Decides the start offsets of one group's queues that have no stored offset."""

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
        self._is_known = options.consume_from_where == "first_offset"  # then a new group and a new queue start alike
        self._began: float | None = None
        self._owed: dict[MessageQueue, int] = {}  # deferred while their broker was unreachable; Unix milliseconds
        self._starts: dict[MessageQueue, Start] = {}  # decided by this process

    def note_route(self, topic: str) -> None:
        """Record a topic's first route: its present queues, or none if name servers do not know the topic."""
        self._first.setdefault(topic, frozenset(self.client.routes.queues(topic)))

    async def start(self, queue: MessageQueue, stored: int | None) -> Start:
        """Return the start offset of a queue; `stored` is the group's offset of it, if there is one.

        Raises RmqdError if the start offset cannot be determined yet.
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
        """Store the start offsets of all queues if the group is new. Raises RmqdError."""
        async with self._turn:
            if not self._is_known:
                self._began = self.clock.monotonic() if self._began is None else self._began
                await self._found(await self._first_queues())
                self._is_known = True

    def is_owed(self, queue: MessageQueue) -> bool:
        """Return whether the queue was in a first route, but its start offset could not be stored then."""
        return queue in self._owed

    @abstractmethod
    async def stored(self, queue: MessageQueue) -> int | None:
        """Return the group's current offset of a queue; None if it has none. Raises RmqdError."""

    @abstractmethod
    async def _found(self, first: list[MessageQueue]) -> None:
        """Store the start offsets of these queues if the group is new."""

    def _be_patient(self, failed: Mapping[str, RmqdError]) -> None:
        """Raise a failing broker's error for a grace period: the broker may know the group, and may recover."""
        waited = 0.0 if self._began is None else self.clock.monotonic() - self._began
        if failed and (waited < AWAY_SECONDS or not self._leaves_brokers_out):
            raise next(iter(failed.values()))

    def _owe(self, queues: Iterable[MessageQueue]) -> None:
        """Defer these queues because their brokers are unreachable, and remember the time."""
        now_ms = int(self.clock.wall() * 1000)
        for queue in queues:
            self._owed[queue] = now_ms
            log.warning("queue.not_founded", queue=str(queue))

    async def _owed_start(self, queue: MessageQueue, owed_ms: int) -> Start:
        """Return the start offset that the queue would have had then. Its end at that time is found by store time."""
        if self.policy.where == "last_offset":
            return Start(await self.policy.search(queue, owed_ms - CLOCKS_APART_MS), "last_offset")
        return await self.policy.of_new_group(queue)

    async def _at_brokers(
        self, queues: Iterable[MessageQueue], action: Callable[[MessageQueue], Awaitable[None]]
    ) -> dict[str, RmqdError]:
        """Run an action for each queue, at all brokers at once. Return the brokers' failures by broker name.

        A broker's first failure ends the actions for its queues, because each of them would take as long to fail.
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
        """Return the queues of the first routes that still exist. A topic without a first route has none."""
        for topic in self._topics:
            if topic not in self._first:
                with contextlib.suppress(RouteNotFoundError):
                    await self.client.routes.lookup(topic)
                self.note_route(topic)
        present = [queue for topic in self._topics for queue in self.client.routes.queues(topic)]
        return [queue for queue in present if queue in self._first[queue.topic]]
