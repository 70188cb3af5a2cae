"""The start offset of a queue: the meaning of `consume_from_where`, and the rule for queues added later.

`StartOffsets` decides whether a group is new, or a queue was added to an existing group. The decision depends on stored
offsets alone, not on the state of this process.

A queue may lack a stored offset for three reasons. First: the group is new and starts as `consume_from_where`
specifies. Second: the queue is new, because a topic grew or was created, or a broker was added. Then no message in it
may be skipped, even if the group was not running. Third: another member is about to store the start offset. To
distinguish these cases, a member that finds no offset at all regards itself as the group's first member. It stores the
start offset of every queue in the topics' first routes at once, including the queues of other members. After that, a
queue without an offset must have been added later.

The order of storing a new group's offsets shows whether an earlier attempt was interrupted (`in_storing_order`).

A topic grows upward: queues added to an existing group have higher ids, on their broker, than the queues with offsets.
So a new group's offsets are stored from the highest queue id to the lowest. While some are missing, a queue without an
offset has a lower id than a queue with an offset. Growth never causes that.

If a topic has a single queue on a broker, its order shows nothing. Such queues are stored before the lowest queue ids.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeVar

import structlog

from rmqd.client.api.offset_requests import earliest_store_time, get_max_offset, get_min_offset, search_offset
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.consumer.consumer_options import ConsumeFromWhere, ConsumerOptions
from rmqd.errors import RmqdError, RouteNotFoundError
from rmqd.errors.broker_errors import AccessRefusedError
from rmqd.runtime.clock import Clock
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

_SINGLE = 0.5  # orders a broker's only queue between the second lowest queue id and the lowest one


def in_storing_order(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    """Return the queues in the order of storing their start offsets. Queues in one list may be stored in any order."""
    levels: dict[float, list[MessageQueue]] = defaultdict(list)
    for ids in _by_place(queues).values():
        for rank, queue in enumerate(ids):
            levels[rank if len(ids) > 1 else _SINGLE].append(queue)
    return [sorted(levels[level]) for level in sorted(levels, reverse=True)]


def is_storing_unfinished(queues: Iterable[MessageQueue], stored: Collection[MessageQueue]) -> bool:
    """Return whether the order shows that storing is unfinished. Of `queues`, only those in `stored` have an offset."""
    has = ([queue in stored for queue in ids] for ids in _by_place(queues).values())
    return any(of_place != sorted(of_place, reverse=True) for of_place in has)


def _by_place(queues: Iterable[MessageQueue]) -> dict[tuple[str, str], list[MessageQueue]]:
    """Return the queues of each topic and broker, in the order of queue ids."""
    places: dict[tuple[str, str], list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        places[queue.topic, queue.broker_name].append(queue)
    return places


log = structlog.get_logger(__name__)

T = TypeVar("T")
QueueRequest = Callable[[RemotingClient, str, MessageQueue], Awaitable[T]]

StartReason = Literal["committed", "last_offset", "first_offset", "timestamp", "later_queue"]


@dataclass(frozen=True, slots=True)
class QueueStart:
    """The first offset to pull, the reason for it, and whether it is already the group's stored offset."""

    offset: int
    why: StartReason
    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class StartOffsetPolicy:
    """Computes start offsets from the group's options and the time when this member started."""

    client: ClientInstance
    where: ConsumeFromWhere
    timestamp_ms: int
    started_ms: int

    async def new_group_start(self, queue: MessageQueue) -> QueueStart:
        """Return a new group's start offset (`RebalancePushImpl.computePullFromWhere`). Raises RmqdError.

        | consume_from_where | topic                          | the group's retry topic |
        |--------------------|--------------------------------|-------------------------|
        | last_offset        | the queue's end                | its first kept message  |
        | first_offset       | its first kept message         | its first kept message  |
        | timestamp          | first message since that time  | the queue's end         |

        Java uses 0 for "first" and lets the broker correct it, but with `on_offset_illegal: stop` there is no
        correction. If a queue's first message was stored after this member had started, the queue was empty at the
        start of the member, and is consumed from that message on.
        """
        where, is_retry = self.where, is_retry_topic(queue.topic)
        if where == "first_offset" or (where == "last_offset" and is_retry):
            return QueueStart(await self._first(queue), where)
        if where == "last_offset" or is_retry:
            end = await self._end(get_max_offset, queue)
            if end and not is_retry and await self._came_after_start(queue):
                return QueueStart(await self._first(queue), "later_queue")
            return QueueStart(end, where)
        return QueueStart(await self.search_offset(queue, self.timestamp_ms), where)

    async def later_queue_start(self, queue: MessageQueue) -> QueueStart:
        """Return the start offset of a queue that was added to an existing group: the queue's first message."""
        return QueueStart(await self._first(queue), "first_offset" if self.where == "first_offset" else "later_queue")

    async def lost_queue_start(self, queue: MessageQueue, committed: int, stored_ms: int) -> QueueStart:
        """Return the start offset if the broker has lost this process's commit, and perhaps the queue with it.

        If the topic was recreated, the new queue either ends below the commit, or has messages below the commit that
        are newer than every pulled message.
        """
        end = await self._end(get_max_offset, queue)
        if not end and is_retry_topic(queue.topic):  # the queue is empty or unreadable: the next pull shows which
            return QueueStart(committed, "committed")
        unseen = await self.search_offset(queue, stored_ms + 1) if stored_ms else committed
        if min(end, unseen) >= committed:
            return QueueStart(committed, "committed")
        return QueueStart(max(await self._first(queue), unseen if stored_ms else 0), "later_queue")

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time. Raises RmqdError."""
        return await self._ask(partial(search_offset, timestamp_ms=timestamp_ms), queue)

    async def _first(self, queue: MessageQueue) -> int:
        return max(0, await self._end(get_min_offset, queue))

    async def _end(self, question: QueueRequest[int], queue: MessageQueue) -> int:
        """Return one end of a queue; 0 for a retry topic that this user may not query, because Java also starts at 0.

        The request needs the permission Get on the group, but a member that has only Sub must receive its retries too.
        """
        try:
            return await self._ask(question, queue)
        except AccessRefusedError as error:
            if error.refusal.is_about_who or not is_retry_topic(queue.topic):
                raise
            return 0

    async def _came_after_start(self, queue: MessageQueue) -> bool:
        stored_ms = await self._ask(earliest_store_time, queue)
        return stored_ms is not None and stored_ms >= self.started_ms

    async def _ask(self, question: QueueRequest[T], queue: MessageQueue) -> T:
        async with self.client.offset_request(queue):
            return await question(self.client.remoting, self.client.routes.address_for(queue), queue)


BROKER_GRACE_SECONDS = 60.0  # how long an unreachable broker of the first routes delays a new group
CLOCK_TOLERANCE_MS: Final = 60_000  # tolerance for our clock being ahead of a broker's
MAX_REQUESTS_PER_BROKER: Final = 32  # concurrent requests to one broker


class StartOffsets(ABC):
    """Decides the start offsets of one group's queues that have no stored offset."""

    leaves_brokers_out = True
    """Whether a new group starts without brokers that stay unreachable."""

    def __init__(self, client: ClientInstance, options: ConsumerOptions, clock: Clock) -> None:
        started_ms = int(clock.wall() * 1000)
        self.policy = StartOffsetPolicy(
            client, options.consume_from_where, options.consume_timestamp_ms or 0, started_ms
        )
        self.client = client
        self.clock = clock
        self._topics = tuple(options.subscriptions)
        self._first: dict[str, frozenset[MessageQueue]] = {}  # the queues of each topic's first route
        self._turn = asyncio.Lock()
        # no check is needed with first_offset: queues of a new group and added queues start at their first message
        self._is_known = options.consume_from_where == "first_offset"
        self._began: float | None = None
        self._deferred: dict[MessageQueue, int] = {}  # queue -> when `_defer` was called for it (Unix milliseconds)
        self._starts: dict[MessageQueue, QueueStart] = {}  # a new group's start offsets, decided by this process
        self._checked: dict[MessageQueue, int] = {}  # stored offsets at the end of `store_if_new_group`

    def record_first_route(self, topic: str) -> None:
        """Record the queues of a topic's first route. An unknown topic has no queues. Later calls do nothing."""
        self._first.setdefault(topic, frozenset(self.client.routes.queues(topic)))

    async def determine_start(self, queue: MessageQueue, stored: int | None) -> QueueStart:
        """Return the start offset of a queue. `stored` is the queue's stored offset, or None.

        Raises RmqdError if the start offset cannot be determined yet.
        """
        if stored is None:
            is_new = not self._is_known
            await self.store_if_new_group()
            stored, decided = self._checked.pop(queue, None) if is_new else None, self._starts.get(queue)
            if stored is None:
                stored = await self.read_stored_offset(queue)
            if decided is not None and stored in (None, decided.offset):
                return QueueStart(decided.offset, decided.why, is_stored=stored is not None)
        if stored is not None:
            return QueueStart(stored, "committed", is_stored=True)
        if (deferred_ms := self._deferred.get(queue)) is not None:
            return await self._deferred_start(queue, deferred_ms)
        return await self.policy.later_queue_start(queue)

    async def store_if_new_group(self) -> None:
        """Store the start offsets of all queues if the group is new. Raises RmqdError."""
        async with self._turn:
            if not self._is_known:
                self._began, self._checked = self.clock.monotonic() if self._began is None else self._began, {}
                await self._store_if_new(await self._first_queues())
                self._is_known = True

    def is_deferred(self, queue: MessageQueue) -> bool:
        """Return whether the queue's start offset could not be stored while the group was new."""
        return queue in self._deferred

    @abstractmethod
    async def read_stored_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's current offset of a queue; None if it has none. Raises RmqdError."""

    @abstractmethod
    async def _store_if_new(self, first: list[MessageQueue]) -> None:
        """Store the start offsets of these queues if the group is new."""

    def _raise_within_grace_period(self, failed: Mapping[str, RmqdError]) -> None:
        """Raise the error of a failed broker during BROKER_GRACE_SECONDS: the broker may know the group, or recover."""
        waited = 0.0 if self._began is None else self.clock.monotonic() - self._began
        if failed and (waited < BROKER_GRACE_SECONDS or not self.leaves_brokers_out):
            raise next(iter(failed.values()))

    def _defer(self, queues: Iterable[MessageQueue]) -> None:
        """Record that these queues' start offsets cannot be stored now: brokers are unreachable or refuse requests."""
        now_ms = int(self.clock.wall() * 1000)
        for queue in queues:
            self._deferred[queue] = now_ms
            log.warning("queue.not_founded", queue=str(queue))

    async def _deferred_start(self, queue: MessageQueue, deferred_ms: int) -> QueueStart:
        """Return the start offset as of the time when the queue was deferred, by the store times of messages."""
        if self.policy.where == "last_offset":
            return QueueStart(await self.policy.search_offset(queue, deferred_ms - CLOCK_TOLERANCE_MS), "last_offset")
        return await self.policy.new_group_start(queue)

    async def _at_brokers(
        self, queues: Iterable[MessageQueue], action: Callable[[MessageQueue], Awaitable[None]]
    ) -> dict[str, RmqdError]:
        """Run an action for each queue, at all brokers at once. Return the brokers' failures by broker name.

        A broker's first failure ends the actions for its queues, because each further action would fail as slowly.
        """
        failed: dict[str, RmqdError] = {}

        async def at(name: str, own: list[MessageQueue]) -> None:
            for start in range(0, len(own), MAX_REQUESTS_PER_BROKER):
                results = await asyncio.gather(
                    *map(action, own[start : start + MAX_REQUESTS_PER_BROKER]), return_exceptions=True
                )
                for error in results:
                    if isinstance(error, RmqdError):
                        failed[name] = error
                        return
                    if error is not None:
                        raise error

        await asyncio.gather(*(at(name, own) for name, own in self.client.routes.by_endpoint(queues).items()))
        return failed

    async def _first_queues(self) -> list[MessageQueue]:
        """Look up missing first routes. Return the queues of all topics' first routes that still exist."""
        for topic in self._topics:
            if topic not in self._first:
                with contextlib.suppress(RouteNotFoundError):
                    await self.client.routes.lookup(topic)
                self.record_first_route(topic)
        present = [queue for topic in self._topics for queue in self.client.routes.queues(topic)]
        return [queue for queue in present if queue in self._first[queue.topic]]
