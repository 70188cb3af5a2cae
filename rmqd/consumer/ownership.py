"""Who of the rmqd members has a queue: so that a new owner waits until the old one has finished and committed.

The sign is a broker's queue lock under the group's name with a suffix. Never under the group's own name: while a group
holds any lock of its own, the broker puts every retry that is *sent* for it into the dead letters. Members of other
clients hold no such lock and are not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.consumer.broker_locks import RENEW_SECONDS, BrokerLocks
from rmqd.wire.message import MessageQueue

log = structlog.get_logger(__name__)

LOCK_NAME_SUFFIX: Final = "-rmqd-owner"
CLAIM_SECONDS: Final = 1.0  # how soon a queue that is owned without its lock is locked once that is free
POLL_SECONDS: Final = 0.05
GONE_SECONDS: Final = 70.0  # longer than a lock lives
SURE_SECONDS: Final = 1.0  # a member whose connection was cut is back with its next heartbeat, which is soon


class QueueOwnership:
    """The ownership locks of one group in this process."""

    def __init__(self, client: ClientInstance, group: str, timeout_seconds: float, clock: Clock) -> None:
        self._client = client
        self._locks = BrokerLocks(client, group + LOCK_NAME_SUFFIX)
        self._timeout = timeout_seconds
        self._clock = clock
        self._owned: set[MessageQueue] = set()
        self._locked: set[MessageQueue] = set()
        self._lists: dict[str, frozenset[str]] = {}  # by broker address
        self._gone: dict[str, float] = {}  # client id -> when it was missed
        self._broken: set[tuple[str, str]] = set()  # (client id of one that is gone, topic) whose locks are broken
        self._to_break: dict[str, list[MessageQueue]] = {}  # by topic, where somebody may be gone
        self.timeouts = 0

    def members_are(self, address: str, client_ids: Collection[str]) -> list[str]:
        """The group's members as one broker lists them now.

        Who was in that broker's list, and is in no list any more, has gone without a word. A list is compared with that
        broker's last one only: a member that joins is known to one of them before the others. Returns the brokers whose
        last list still names a member that is missing here now: they should be asked again.
        """
        now = self._clock.monotonic()
        before = self._lists.get(address, frozenset())
        missing = before.difference(client_ids)
        known = self._client.routes.broker_addresses()
        self._lists = {at: ids for at, ids in self._lists.items() if at in known}
        self._lists[address] = frozenset(client_ids)
        present = self._members()
        for client_id in before - present:
            self._gone[client_id] = now
        self._gone = {c: at for c, at in self._gone.items() if c not in present and now - at < GONE_SECONDS}
        self._broken = {(client_id, topic) for client_id, topic in self._broken if client_id in self._gone}
        return [at for at, ids in self._lists.items() if ids & missing]

    async def break_locks(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Break the locks of members that are gone, which would last up to a minute, whoever takes the queues now.

        Of those that are missing for a moment only, `run` breaks them if they stay away.
        """
        if len(self._surely_gone()) < len(self._gone):
            self._to_break[topic] = list(queues)
        else:
            self._to_break.pop(topic, None)
        wanted = [client_id for client_id in self._surely_gone() if (client_id, topic) not in self._broken]
        if not wanted:
            return
        brokers = self._locks.by_broker(queues)
        for client_id in wanted:
            results = await asyncio.gather(*(self._locks.unlock(at, own, client_id) for at, own in brokers.items()))
            if all(results):
                self._broken.add((client_id, topic))

    async def acquire(self, queue: MessageQueue, lost: Callable[[], None], notice_seconds: float = 0.0) -> bool:
        """Own a queue once its rmqd owner gave it up or has gone, at the latest after `queue_handover_timeout`.

        Where brokers tell nobody of members that come, that time begins when the owner must have seen it.
        """
        patience_seconds = self._timeout + notice_seconds
        begun = self._clock.monotonic()
        deadline = begun + patience_seconds
        waited = timed_out = False
        while not await self._lock(queue):
            now = self._clock.monotonic()
            is_alone = not (self._members() - {self._client.client_id} or len(self._surely_gone()) < len(self._gone))
            if is_alone and now - begun >= SURE_SECONDS:
                break  # nobody is there who could still commit, nor on the way back to a broker that cut its connection
            left = deadline - now
            if left <= 0:
                self.timeouts += 1
                timed_out = True
                log.warning("queue.handover_timed_out", queue=str(queue), seconds=patience_seconds)
                break
            waited = True
            await asyncio.sleep(min(left, CLAIM_SECONDS if self._locks.refused else POLL_SECONDS))
        self._owned.add(queue)
        if waited:
            log.info("queue.handed_over", queue=str(queue))
        return not timed_out

    async def release(self, queue: MessageQueue) -> None:
        """Give a queue up; what was to be committed has been."""
        self._owned.discard(queue)
        self._locked.discard(queue)
        broker_name = self._locks.broker_of(queue)
        async with self._locks.turn(broker_name):
            await self._locks.unlock(broker_name, [queue])

    def linger(self, queue: MessageQueue) -> float:
        """No longer: the next owner's wait is over too."""
        return 0.0

    async def close(self, *, calls_left: bool) -> None:
        """Release the rest, whatever handlers do: nobody is to wait for a member that has ended."""
        await asyncio.gather(*(self.release(queue) for queue in list(self._owned)))

    def holds(self, queue: MessageQueue) -> bool:
        """Always: without the lock the wait for a former owner is bounded, and the rebalance is what counts."""
        return True

    async def run(self) -> None:
        """Keep the locks alive, until cancelled."""
        renewed = self._clock.monotonic()
        while True:
            await asyncio.sleep(CLAIM_SECONDS)
            for topic, queues in list(self._to_break.items()):
                await self.break_locks(topic, queues)
            if self._clock.monotonic() - renewed >= RENEW_SECONDS:
                renewed = self._clock.monotonic()
                await self._claim(self._owned)
            elif not self._locks.refused:
                lost = {queue for queue in self._locked if self._locks.may_be_lost(self._locks.broker_of(queue))}
                await self._claim((self._owned - self._locked) | lost)

    def _surely_gone(self) -> set[str]:
        """Who has been missing for longer than it takes to come back by another connection."""
        now = self._clock.monotonic()
        return {client_id for client_id, at in self._gone.items() if now - at >= SURE_SECONDS}

    def _members(self) -> frozenset[str]:
        return frozenset().union(*self._lists.values())

    async def _claim(self, queues: Iterable[MessageQueue]) -> None:
        await asyncio.gather(*(self._claim_at(name, named) for name, named in self._locks.by_broker(queues).items()))

    async def _claim_at(self, broker_name: str, queues: set[MessageQueue]) -> None:
        async with self._locks.turn(broker_name):
            wanted = queues & self._owned
            granted = (await self._locks.lock(broker_name, wanted) if wanted else None) or frozenset()
        self._locked -= wanted - granted
        self._locked |= granted & self._owned

    async def _lock(self, queue: MessageQueue) -> bool:
        granted = await self._locks.lock(self._locks.broker_of(queue), {queue}) or frozenset()
        self._locked |= granted
        return bool(granted)
