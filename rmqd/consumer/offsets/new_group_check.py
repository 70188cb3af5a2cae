"""Checks whether a group is new, and stores its start offsets: at the brokers, or in a broadcasting group's file."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from rmqd.client.api.offset_requests import StoredOffset
from rmqd.client.instance import ClientInstance
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.offsets.local_file_store import LocalFileOffsetStore
from rmqd.consumer.offsets.start_offsets import (
    BROKER_GRACE_SECONDS,
    StartOffsets,
    in_storing_order,
    is_storing_unfinished,
)
from rmqd.errors import RmqdError, SlaveOffsetMissingError
from rmqd.errors.broker_errors import AccessRefusedError
from rmqd.runtime.clock import Clock
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic

log = structlog.get_logger(__name__)

FIRST_MEMBER_SECONDS = 5.0  # time for another member to finish storing start offsets
POLL_SECONDS = 0.25
_ROUNDS: Final = 3  # maximum number of rounds; each round stores the start offsets that are still missing


@dataclass(slots=True)
class _Found:
    """The brokers' responses about the stored offsets of a group's queues."""

    offsets: dict[MessageQueue, StoredOffset | None] = field(default_factory=dict)
    failed: dict[str, RmqdError] = field(default_factory=dict)  # broker name -> error
    refused: dict[MessageQueue, AccessRefusedError] = field(default_factory=dict)  # no permission to query

    def missing(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return the queues that have no stored offset of the group, according to a broker."""
        return [queue for queue in queues if queue in self.offsets and self.offsets[queue] is None]

    def certain(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Return the queues that certainly have a stored offset. A 4.x broker's 0 is not certain: it may mean none."""
        return {queue for queue in queues if (found := self.offsets.get(queue)) is not None and found.is_certain}


class BrokerStartOffsets(StartOffsets):
    """Decides by the stored offsets whether a group is new, and stores the start offsets of a new group.

    *The mark.* A group with an offset on a queue of its retry topic is not new. The founder, the member that stores the
    start offsets, stores that offset last, on every broker. Members of other clients store it sooner or later.
    Several members may store start offsets at the same time: each reads an offset immediately before it would write
    one, and keeps an existing one.

    *Without a mark*, a group is new if no queue has an offset. If only some queues have one, there are two
    explanations. First: a founder is still writing, or was killed. The order of writing shows this case
    (`in_storing_order`), and the missing offsets are then stored. Second: the group belongs to another client, or has
    no retry topic, and its topic has grown. Then the group is not new.

    *If the order shows nothing*, as for topics with a single queue, a running founder gets `FIRST_MEMBER_SECONDS` to
    store the mark. If the founder was killed before that, the group is mistaken for an existing one. Its remaining
    queues start at their first message, so messages are repeated, but none is lost.
    """

    def __init__(
        self, client: ClientInstance, options: ConsumerOptions, clock: Clock, store: RemoteBrokerOffsetStore
    ) -> None:
        super().__init__(client, options, clock)
        self._store = store
        self._retry = retry_topic(options.group)
        self._missing: set[MessageQueue] = set()  # without an offset in `read_stored_offset` since the last check
        self._unproven: dict[MessageQueue, float] = {}  # queue -> when a slave first returned no offset (monotonic)

    async def read_stored_offset(self, queue: MessageQueue) -> int | None:
        """Return the broker's offset. While only a slave responds and has none, raise for BROKER_GRACE_SECONDS."""
        try:
            offset = await self._store.read(queue)
        except SlaveOffsetMissingError:
            since = self._unproven.setdefault(queue, self.clock.monotonic())
            await self.store_if_new_group()  # for a new group this raises while the master is missing
            if self.clock.monotonic() - since < BROKER_GRACE_SECONDS:
                raise
            return None
        self._unproven.pop(queue, None)
        if offset is None:
            self._missing.add(queue)
        return offset

    async def _store_if_new(self, first: list[MessageQueue]) -> None:
        found = await self._without_start_offsets(first)
        if found is None:
            return
        self._raise_within_grace_period(found.failed)
        failed = found.failed | await self._store_starts(found.missing(first), found.failed)
        self._raise_within_grace_period(failed)
        ready = {*self._without(first, failed)}
        self._defer(queue for queue in first if queue not in ready or queue in found.refused)
        brokers = sorted(self.client.routes.by_endpoint(first).keys() - failed.keys())
        await self._mark(brokers)
        log.info("group.founded", queues=len(self._starts), brokers=brokers, consume_from_where=self.policy.where)

    async def _without_start_offsets(self, first: list[MessageQueue]) -> _Found | None:
        """Query the stored offsets. Return them if the group is new or its start offsets are incomplete, else None."""
        deadline = self.clock.monotonic() + FIRST_MEMBER_SECONDS
        while True:
            marks = self._marks(self.client.routes.by_endpoint(first))
            if (await self._query(marks)).certain(marks):
                return None
            # no second query for these queues: `store_start_offset` reads the stored offset before it writes one
            missing, self._missing = self._missing, set()
            found = await self._query(queue for queue in first if queue not in missing)
            found.offsets |= dict.fromkeys(missing)
            stored = found.certain(first)
            if not (found.missing(first) or found.failed):
                if found.refused and not stored:
                    raise next(iter(found.refused.values()))
                return None
            if not stored or is_storing_unfinished({*stored, *found.missing(first)}, stored):
                return found
            if self.clock.monotonic() >= deadline:
                return None
            await self.clock.sleep(POLL_SECONDS)

    def _marks(self, brokers: Collection[str]) -> list[MessageQueue]:
        """Return the retry topic's queues: all queues in its route, and each broker's queue 0 even without a route."""
        routed = self.client.routes.queues(self._retry)
        return sorted({*routed, *(MessageQueue(self._retry, name, 0) for name in brokers)})

    async def _query(self, queues: Iterable[MessageQueue]) -> _Found:
        found = _Found()

        async def ask(queue: MessageQueue) -> None:
            try:
                found.offsets[queue] = await self._store.query_stored(queue)
            except AccessRefusedError as error:
                found.refused[queue] = error
            except SlaveOffsetMissingError as error:
                # not raised, because the slave may know the offsets of other queues
                found.failed[self.client.routes.endpoint(queue)] = error

        found.failed |= await self._at_brokers(queues, ask)
        return found

    async def _store_starts(self, missing: list[MessageQueue], failed: Collection[str]) -> dict[str, RmqdError]:
        """Store the missing start offsets, and read them back. Return the brokers' failures by broker name.

        A commit may be lost without an error: the first commit for a group and topic creates a table at the broker,
        without a lock. If another member's first commit arrives at the same time, only one of the two is kept.
        """
        failures: dict[str, RmqdError] = {}
        for _ in range(_ROUNDS):
            for level in in_storing_order(missing):
                failures |= await self._at_brokers(self._without(level, {*failed, *failures}), self._store_start)
            missing = self._without(missing, {*failed, *failures})
            seen = await self._query(missing)
            failures |= seen.failed
            self._checked |= {queue: one.offset for queue, one in seen.offsets.items() if one is not None}
            missing = seen.missing(missing)
            if not missing:
                break
        return failures

    async def _store_start(self, queue: MessageQueue) -> None:
        if queue not in self._starts:
            self._starts[queue] = await self.policy.new_group_start(queue)
        await self._store.store_start_offset(queue, self._starts[queue].offset)

    async def _mark(self, brokers: Collection[str]) -> None:
        """Store the retry topic's offsets, the mark of a known group. If that fails, the queues' next owners do it."""
        marks = [queue for queue in self._marks(brokers) if queue.broker_name in brokers]
        failed = await self._at_brokers(marks, self._store_start)
        for name, error in failed.items():
            log.debug("group.not_marked", broker=name, error=str(error))

    def _without(self, queues: Iterable[MessageQueue], brokers: Collection[str]) -> list[MessageQueue]:
        return [queue for queue in queues if self.client.routes.endpoint(queue) not in brokers]


class FileStartOffsets(StartOffsets):
    """A broadcasting group's start offsets. It is new if it has no file; a queue missing in it was added later."""

    def __init__(
        self, client: ClientInstance, options: ConsumerOptions, clock: Clock, store: LocalFileOffsetStore
    ) -> None:
        super().__init__(client, options, clock)
        self._store = store

    async def read_stored_offset(self, queue: MessageQueue) -> int | None:
        return await self._store.read(queue)

    async def _store_if_new(self, first: list[MessageQueue]) -> None:
        if not self._store.is_new:
            return

        async def decide(queue: MessageQueue) -> None:
            self._starts[queue] = await self.policy.new_group_start(queue)

        failed = await self._at_brokers(first, decide)
        self._raise_within_grace_period(failed)
        self._defer(queue for queue in first if queue not in self._starts)
        await self._store.store_start_offsets({queue: start.offset for queue, start in self._starts.items()})
