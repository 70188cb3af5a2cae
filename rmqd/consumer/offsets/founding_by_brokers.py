"""Founds a clustering group: its offsets are on the brokers, and other members may found it at the same time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from rmqd.broker_errors import AccessRefusedError
from rmqd.client.api.offset import StoredOffset
from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.consumer.founding.founding import AWAY_SECONDS, Founding
from rmqd.consumer.founding.order import in_levels, is_unfinished
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.options import ConsumerOptions
from rmqd.errors import RmqdError, SlaveUnawareError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic

log = structlog.get_logger(__name__)

FOUNDER_SECONDS = 5.0  # that another member gets to finish what looks like its founding
LOOK_SECONDS = 0.25
_ROUNDS: Final = 3  # of storing what is not there when it is looked at again


@dataclass(slots=True)
class _Found:
    """What brokers say about a group's queues."""

    offsets: dict[MessageQueue, StoredOffset | None] = field(default_factory=dict)
    failed: dict[str, RmqdError] = field(default_factory=dict)  # by broker name
    refused: dict[MessageQueue, AccessRefusedError] = field(default_factory=dict)  # this client may not know

    def missing(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """The queues for which the group has no offset."""
        return [queue for queue in queues if queue in self.offsets and self.offsets[queue] is None]

    def certain(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """The queues for which the group certainly has an offset. A 0 of a broker of 4.x is an offset, or none."""
        return {queue for queue in queues if (found := self.offsets.get(queue)) is not None and found.is_certain}


class BrokerFounding(Founding):
    """Tells by the stored offsets whether the group is known, and stores the starts of a new one.

    *The mark.* A group that has an offset on a queue of its retry topic has been founded. The founder stores that
    offset last, on every broker; consumers of other clients store one sooner or later. Several members may found the
    group at the same time: each reads an offset just before it would write one, and leaves what is there.

    *Without a mark*, all queues without an offset make a new group. If some queues have one and others have none, there
    are two explanations. Either a founder is under way, or was killed: then the order in which it writes shows that
    (`founding.order`), and the founding is brought to its end. Or the group is another client's, or has no retry topic,
    and its topic has grown: then it is a known group.

    *Where the order shows nothing*, as with topics of a single queue, a founder that lives gets `FOUNDER_SECONDS` to
    set its mark. One that was killed there is mistaken for a known group: the queues that it left out begin at their
    first message, so messages are repeated and none is lost.
    """

    def __init__(
        self,
        client: ClientInstance,
        options: ConsumerOptions,
        clock: Clock,
        store: RemoteBrokerOffsetStore,
        *,
        leaves_brokers_out: bool = True,
    ) -> None:
        super().__init__(client, options, clock, leaves_brokers_out=leaves_brokers_out)
        self._store = store
        self._retry = retry_topic(options.group)
        self._unproven: dict[MessageQueue, float] = {}  # a slave knows no offset: since when (monotonic)

    async def stored(self, queue: MessageQueue) -> int | None:
        """The offset that the broker has. A slave that has none counts once its master has been away for a while."""
        try:
            offset = await self._store.read(queue)
        except SlaveUnawareError:
            since = self._unproven.setdefault(queue, self.clock.monotonic())
            await self.ensure()  # a founding waits for the same master
            if self.clock.monotonic() - since < AWAY_SECONDS:
                raise
            return None
        self._unproven.pop(queue, None)
        return offset

    async def _found(self, first: list[MessageQueue]) -> None:
        found = await self._unfounded(first)
        if found is None:
            return
        self._be_patient(found.failed)
        failed = found.failed | await self._store_starts(found.missing(first), found.failed)
        self._be_patient(failed)
        ready = {*self._without(first, failed)}
        self._owe(queue for queue in first if queue not in ready or queue in found.refused)
        brokers = sorted(self.client.routes.by_endpoint(first).keys() - failed.keys())
        await self._mark(brokers)
        log.info("group.founded", queues=len(self._starts), brokers=brokers, consume_from_where=self.policy.where)

    async def _unfounded(self, first: list[MessageQueue]) -> _Found | None:
        """What brokers have stored for a group that is new, or whose founding was cut short; None for a known group."""
        deadline = self.clock.monotonic() + FOUNDER_SECONDS
        while True:
            marks = self._marks(self.client.routes.by_endpoint(first))
            if (await self._look(marks)).certain(marks):
                return None
            found = await self._look(first)
            stored = found.certain(first)
            if not (found.missing(first) or found.failed):
                if found.refused and not stored:
                    raise next(iter(found.refused.values()))
                return None
            if not stored or is_unfinished({*stored, *found.missing(first)}, stored):
                return found
            if self.clock.monotonic() >= deadline:
                return None
            await self.clock.sleep(LOOK_SECONDS)

    def _marks(self, brokers: Collection[str]) -> list[MessageQueue]:
        """The queues of the retry topic. A broker makes it at the first heartbeat, before name servers know."""
        routed = self.client.routes.queues(self._retry)
        return sorted({*routed, *(MessageQueue(self._retry, name, 0) for name in brokers)})

    async def _look(self, queues: Iterable[MessageQueue]) -> _Found:
        found = _Found()

        async def ask(queue: MessageQueue) -> None:
            try:
                found.offsets[queue] = await self._store.look_up(queue)
            except AccessRefusedError as error:
                found.refused[queue] = error
            except SlaveUnawareError as error:  # the slave may know other queues
                found.failed[self.client.routes.endpoint(queue)] = error

        found.failed |= await self._at_brokers(queues, ask)
        return found

    async def _store_starts(self, missing: list[MessageQueue], failed: Collection[str]) -> dict[str, RmqdError]:
        """Store where the group begins, and look again. Returns the brokers' failures by broker name.

        A broker makes a table for a group's topic with its first commit, and no lock: where another member's first
        commit comes at the same time, one of the two is answered with success, and lost.
        """
        failures: dict[str, RmqdError] = {}
        for _ in range(_ROUNDS):
            for level in in_levels(missing):
                failures |= await self._at_brokers(self._without(level, {*failed, *failures}), self._store_start)
            missing = self._without(missing, {*failed, *failures})
            seen = await self._look(missing)
            failures |= seen.failed
            missing = seen.missing(missing)
            if not missing:
                break
        return failures

    async def _store_start(self, queue: MessageQueue) -> None:
        if queue not in self._starts:
            self._starts[queue] = await self.policy.of_new_group(queue)
        await self._store.found(queue, self._starts[queue].offset)

    async def _mark(self, brokers: Collection[str]) -> None:
        """Mark the group as founded. Where that fails, the member that takes the retry topic's queue does it."""
        marks = [queue for queue in self._marks(brokers) if queue.broker_name in brokers]
        failed = await self._at_brokers(marks, self._store_start)
        for name, error in failed.items():
            log.debug("group.not_marked", broker=name, error=str(error))

    def _without(self, queues: Iterable[MessageQueue], brokers: Collection[str]) -> list[MessageQueue]:
        return [queue for queue in queues if self.client.routes.endpoint(queue) not in brokers]
