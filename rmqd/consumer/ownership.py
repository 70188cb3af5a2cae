"""Who of the rmqd members has a queue: so that a new owner waits until the old one has finished and committed.

The sign is a broker's queue lock under the group's name with a suffix. Never under the group's own name: while a group
holds any lock of its own, the broker puts every retry that is *sent* for it into the dead letters. Members of other
clients hold no such lock and are not waited for.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

import structlog

from rmqd.client.api.lock import lock_batch, unlock_batch
from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.errors import RmqdError
from rmqd.wire.message import MessageQueue

log = structlog.get_logger(__name__)

LOCK_NAME_SUFFIX: Final = "-rmqd-owner"
RENEW_SECONDS: Final = 20.0  # the broker forgets a lock after 60 s
CLAIM_SECONDS: Final = 1.0  # how soon a queue that is owned without its lock is locked once that is free
POLL_SECONDS: Final = 0.05
GONE_SECONDS: Final = 70.0  # longer than a lock lives


class QueueOwnership:
    """The ownership locks of one group in this process."""

    def __init__(self, client: ClientInstance, group: str, timeout_seconds: float, clock: Clock) -> None:
        self._client = client
        self._name = group + LOCK_NAME_SUFFIX
        self._timeout = timeout_seconds
        self._clock = clock
        self._owned: set[MessageQueue] = set()
        self._locked: set[MessageQueue] = set()
        self._lists: dict[str, frozenset[str]] = {}  # by broker address
        self._gone: dict[str, float] = {}  # client id -> when it was missed
        self.timeouts = 0

    def members_are(self, address: str, client_ids: Collection[str]) -> None:
        """The group's members as one broker lists them now.

        Who was in that broker's list, and is in no list any more, has gone without a word. Lists of different brokers
        are not compared: a member that joins is known to one of them before the others.
        """
        now = self._clock.monotonic()
        before = self._lists.get(address, frozenset())
        known = self._client.routes.broker_addresses()
        self._lists = {at: ids for at, ids in self._lists.items() if at in known}
        self._lists[address] = frozenset(client_ids)
        present = self._members()
        for client_id in before - present:
            self._gone[client_id] = now
        self._gone = {c: at for c, at in self._gone.items() if c not in present and now - at < GONE_SECONDS}

    async def acquire(self, queue: MessageQueue) -> None:
        """Own a queue once its rmqd owner gave it up or has gone, at the latest after `queue_handover_timeout`."""
        deadline = self._clock.monotonic() + self._timeout
        waited, tried = False, set[str]()
        while not await self._lock(queue):
            if gone := self._gone.keys() - tried:
                # locks of members that were killed: they would last up to a minute
                tried |= gone
                await asyncio.gather(*(self._unlock(queue, client_id) for client_id in gone))
                continue
            if not self._members() - {self._client.client_id}:
                break  # nobody is there who could still commit
            if self._clock.monotonic() >= deadline:
                self.timeouts += 1
                log.warning("queue.handover_timed_out", queue=str(queue), seconds=self._timeout)
                break
            waited = True
            await asyncio.sleep(POLL_SECONDS)
        self._owned.add(queue)
        if waited:
            log.info("queue.handed_over", queue=str(queue))

    async def release(self, queue: MessageQueue) -> None:
        """Give a queue up; what was to be committed has been."""
        self._owned.discard(queue)
        self._locked.discard(queue)
        await self._unlock(queue, self._client.client_id)

    async def run(self) -> None:
        """Keep the locks alive, until cancelled."""
        renewed = self._clock.monotonic()
        while True:
            await asyncio.sleep(CLAIM_SECONDS)
            if self._clock.monotonic() - renewed >= RENEW_SECONDS:
                renewed = self._clock.monotonic()
                await self._claim(self._owned)
            else:
                await self._claim(self._owned - self._locked)

    def _members(self) -> frozenset[str]:
        return frozenset().union(*self._lists.values())

    async def _claim(self, queues: Iterable[MessageQueue]) -> None:
        by_broker: dict[str, set[MessageQueue]] = defaultdict(set)
        for queue in queues:
            by_broker[queue.broker_name].add(queue)
        for broker_name, wanted in by_broker.items():
            granted = await self._lock_many(broker_name, wanted)
            self._locked -= wanted - granted
            self._locked |= granted & self._owned

    async def _lock(self, queue: MessageQueue) -> bool:
        granted = await self._lock_many(queue.broker_name, {queue})
        self._locked |= granted
        return bool(granted)

    async def _lock_many(self, broker_name: str, queues: Collection[MessageQueue]) -> frozenset[MessageQueue]:
        address = self._address(broker_name)
        if address is None:
            return frozenset()
        try:
            return await lock_batch(self._client.remoting, address, self._name, self._client.client_id, queues)
        except RmqdError as error:
            # access control may forbid the name: then the bounded wait is all there is
            log.debug("ownership.lock_refused", broker=broker_name, error=str(error))
            return frozenset()

    async def _unlock(self, queue: MessageQueue, client_id: str) -> None:
        address = self._address(queue.broker_name)
        if address is None:
            return
        try:
            await unlock_batch(self._client.remoting, address, self._name, client_id, [queue])
        except RmqdError as error:
            log.debug("ownership.unlock_failed", queue=str(queue), error=str(error))

    def _address(self, broker_name: str) -> str | None:
        master = self._client.routes.master(broker_name)
        return None if master is None else self._client.send_address(master)
