"""The locks of an orderly group: one member at a time, of any client, consumes a queue.

The locks have the group's own name, as in Java. Brokers keep them in memory for 60 s after the last renewal, but rmqd
relies on them for only 30 s. So after a network failure this member stops half a minute before another member can get
the lock. Unlike ownership locks, these locks are never broken for a missing member: a member missing from the list may
still run behind a network failure, and only the lock's expiry keeps two members from handling a queue at the same time.

When the connection to a broker ends, the broker may have restarted and forgotten all locks. So the locks are void until
they are granted again on the next connection. The member that held a lock requests it at once. A member that did not
hold the lock first waits for `BROKER_RESTART_SECONDS`, so that the member that held it comes first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from rmqd.client.api.group_requests import lock_batch, unlock_batch
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.services import Ownership
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import AccessRefusedError, BrokerError
from rmqd.runtime.clock import Clock, suspended_seconds, wait_within
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

RENEW_INTERVAL_SECONDS: Final = 20.0  # Java: rocketmq.client.rebalance.lockInterval
QUEUES_PER_REQUEST: Final = 200  # maximum, so that a busy machine reads the response before the timeout


class BrokerLocks:
    """This client's lock and unlock requests under one lock name: the group, or the group plus a suffix."""

    def __init__(self, client: ClientInstance, name: str) -> None:
        self.refused = False  # whether brokers refuse lock requests
        self._client = client
        self._name = name
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._granted_on: dict[str, RemotingConnection | None] = {}  # broker name -> connection

    def request_turn(self, broker_name: str) -> asyncio.Lock:
        """Return a process-local lock that serializes requests about a broker's locks.

        Otherwise a request for a lock could arrive after the request that releases it.
        """
        return self._turns[broker_name]

    async def lock(self, broker_name: str, queues: Collection[MessageQueue]) -> frozenset[MessageQueue] | None:
        """Lock queues of one broker, or renew the locks. Return the locked queues; None without a response."""
        request = asyncio.create_task(self._request(broker_name, queues), name=f"locks:{broker_name}")
        try:
            return await asyncio.shield(request)
        finally:  # a cancelled caller must not end its turn before the response, because a release follows
            await asyncio.wait((request,))

    async def _request(self, broker_name: str, queues: Collection[MessageQueue]) -> frozenset[MessageQueue] | None:
        address = self._address(broker_name)
        if address is None:
            return None
        granted, wanted, connections = set[MessageQueue](), [*queues], set[RemotingConnection | None]()
        try:
            for start in range(0, len(wanted), QUEUES_PER_REQUEST):
                some = wanted[start : start + QUEUES_PER_REQUEST]
                granted |= await lock_batch(self._client.remoting, address, self._name, self._client.client_id, some)
                connections.add(self._client.remoting.connected(address))
        except RmqdError as error:
            refused = isinstance(error, BrokerError) and not error.retriable
            unknown = isinstance(error, AccessRefusedError) and error.refusal.is_about_who  # reported by the client
            if refused and not self.refused and not unknown:
                log.warning("ownership.lock_refused", broker=broker_name, lock=self._name, error=str(error))
            self.refused = self.refused or refused
            return None
        self.refused = False
        if len(connections) > 1:  # the broker may have restarted between two requests, and forgotten the first locks
            return None
        self._granted_on[broker_name] = self._client.remoting.connected(address)
        return frozenset(granted)

    def connection(self, broker_name: str) -> RemotingConnection | None:
        """Return the open connection to the broker's master; None if there is none."""
        address = self._address(broker_name)
        return None if address is None else self._client.remoting.connected(address)

    def may_have_lost_locks(self, broker_name: str) -> bool:
        """Return whether the broker, which keeps locks in memory, was restarted or replaced since it granted a lock."""
        connection = self.connection(broker_name)
        return connection is not None and self._granted_on.get(broker_name) is not connection

    def may_any_have_lost_locks(self) -> bool:
        """Return whether any broker's locks may be lost. Cheap, because a group has few brokers but many queues."""
        return any(map(self.may_have_lost_locks, {*self._client.routes.brokers(), *self._granted_on}))

    async def unlock(self, broker_name: str, queues: Collection[MessageQueue], client_id: str | None = None) -> bool:
        """Unlock queues, for this client or another one. Return whether the broker responded."""
        address = self._address(broker_name)
        if address is None:
            return False
        client_id, wanted = client_id or self._client.client_id, [*queues]
        try:
            for start in range(0, len(wanted), QUEUES_PER_REQUEST):
                some = wanted[start : start + QUEUES_PER_REQUEST]
                await unlock_batch(self._client.remoting, address, self._name, client_id, some)
        except RmqdError as error:
            log.debug("ownership.unlock_failed", broker=broker_name, client_id=client_id, error=str(error))
            return False
        return True

    def broker_of(self, queue: MessageQueue) -> str:
        """Return the name of the broker with the queue's lock."""
        return self._client.routes.endpoint(queue)

    def by_broker(self, queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
        """Return the queues by the name of the broker with their locks."""
        return {name: set(own) for name, own in self._client.routes.by_endpoint(queues).items()}

    def _address(self, broker_name: str) -> str | None:
        master = self._client.routes.master(broker_name)
        return None if master is None else self._client.send_address(master)


LOCK_EXPIRY_SECONDS: Final = 30.0  # Java: rocketmq.client.rebalance.lockMaxLiveTime; a broker keeps a lock for 60 s
LOCK_REQUEST_INTERVAL_SECONDS: Final = 0.2  # interval of requests for a lock that another member holds
SLOW_REQUEST_INTERVAL_SECONDS: Final = 1.0  # the same after REQUESTS_BEFORE_SLOW_INTERVAL requests
REQUESTS_BEFORE_SLOW_INTERVAL: Final = 100
RENEWAL_CHECK_SECONDS: Final = 1.0
UNLOCK_GRACE_SECONDS: Final = 20.0  # Java: UNLOCK_DELAY_TIME_MILLS
BROKER_RESTART_SECONDS: Final = 6.0  # time in which members request their locks again after a broker's restart


class QueueLease:
    """One period of holding a queue's lock, from the broker's grant to its loss."""

    __slots__ = ("_clock", "_on", "_on_lost", "_until", "is_ending", "is_reported")

    def __init__(
        self, clock: Callable[[], float], until: float, on: RemotingConnection | None, on_lost: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._until = until
        self._on = on
        self._on_lost = on_lost
        self.is_reported = False  # whether the queue's owner was notified that the lock is uncertain
        self.is_ending = False  # whether the queue's handlers overrun the drain time; they can check `valid`

    @property
    def valid(self) -> bool:
        """Whether a handler may rely on exclusive ownership of the queue."""
        return not self.is_ending and self.holds

    @property
    def holds(self) -> bool:
        """Whether no other member can hold the lock."""
        return self._on is not None and self._on.is_open and self._clock() < self._until

    @property
    def awaits_new_grant(self) -> bool:
        """Whether the lock's connection has ended before the lock expired, so that the broker may grant it again."""
        return not self.holds and self._clock() < self._until

    def renew(self, until: float, on: RemotingConnection | None) -> None:
        self._until, self._on, self.is_reported = until, on, False

    def end(self) -> None:
        self._until = float("-inf")

    def notify_owner(self) -> None:
        """Notify the queue's owner once that the lock is uncertain: it must hand out nothing until the next grant."""
        if not self.is_reported:
            self.is_reported = True
            self._on_lost()


class _Wait:
    """A queue that waits for its lock."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_lost = on_lost
        self.rounds = 0  # responses to requests for this lock
        self.locked_out_on: RemotingConnection | None = None  # connection on which another member last held the lock
        self.next_on: RemotingConnection | None = None  # the connection after it, perhaps to a new master
        self.next_at = 0.0  # when `next_on` was first seen (monotonic)


class QueueLock(Ownership):
    """The queue locks of one orderly group in this process."""

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        self._locks = BrokerLocks(client, group)
        self._clock = clock
        self._leases: dict[MessageQueue, QueueLease] = {}
        self._waits: dict[MessageQueue, _Wait] = {}
        self._renewed: dict[str, float] = {}  # broker name -> when all locks there were last renewed
        self._wanted = asyncio.Event()

    def _now(self) -> float:
        # A lock also expires while this machine is suspended, so this time is added to the monotonic clock.
        return self._clock.monotonic() + suspended_seconds()

    async def acquire(
        self, queue: MessageQueue, on_lost: Callable[[], None], max_notice_delay_seconds: float = 0.0
    ) -> bool:
        """Wait for the queue's lock without a limit, and return True."""
        wait = self._waits[queue] = _Wait(on_lost)
        self._wanted.set()
        try:
            await wait.granted
        finally:
            if self._waits.get(queue) is wait:
                del self._waits[queue]
        if wait.rounds > 1:
            log.info("queue.handed_over", queue=str(queue))
        return True

    async def release(self, queue: MessageQueue) -> None:
        broker_name = self._locks.broker_of(queue)
        async with self._locks.request_turn(broker_name):
            lease = self._leases.pop(queue, None)
            if lease is not None:
                lease.end()
            await self._locks.unlock(broker_name, [queue])

    def start_grace_period(self, queue: MessageQueue) -> float:
        """Return for how many seconds after the drain time the queue stays locked while handlers run: as in Java.

        No other member can own the queue meanwhile. Handlers can see in the lease of their batch that they must end.
        """
        lease = self._leases.get(queue)
        if lease is None or not lease.holds:
            return 0.0
        lease.is_ending = True
        return UNLOCK_GRACE_SECONDS

    async def close(self, *, calls_left: bool) -> None:
        """Unlock the queues, unless handler calls may still run: then the locks expire a minute later."""
        if not calls_left:
            await asyncio.gather(*(self.release(queue) for queue in list(self._leases)))

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether this member holds the lock: renewed in the last 30 s, on a connection that is still open."""
        lease = self._leases.get(queue)
        return lease is not None and lease.holds

    def lease(self, queue: MessageQueue) -> QueueLease | None:
        lease = self._leases.get(queue)
        return lease if lease is not None and lease.holds else None

    async def run(self) -> None:
        """Request the wanted locks and renew the held ones, until cancelled."""
        while True:
            self._wanted.clear()
            await self._round()
            await wait_within(self._clock, self._pause(), self._wanted.wait())

    def _pause(self) -> float:
        if not self._waits:
            return RENEWAL_CHECK_SECONDS
        hasty = (
            any(wait.rounds < REQUESTS_BEFORE_SLOW_INTERVAL for wait in self._waits.values())
            and not self._locks.refused
        )
        return LOCK_REQUEST_INTERVAL_SECONDS if hasty else SLOW_REQUEST_INTERVAL_SECONDS

    async def _round(self) -> None:
        now = self._now()
        for queue, lease in list(self._leases.items()):
            if lease.holds:
                continue
            if lease.awaits_new_grant:
                lease.notify_owner()
            else:
                self._lose(queue, "it could not be renewed")
        due = {
            queue
            for name, queues in self._locks.by_broker(self._leases).items()
            if now - self._renewed.get(name, float("-inf")) >= RENEW_INTERVAL_SECONDS
            or self._locks.may_have_lost_locks(name)
            for queue in queues
        }
        wanted = due.union(queue for queue in self._waits if not self._may_be_anothers(queue))
        brokers = self._locks.by_broker(wanted)
        await asyncio.gather(*(self._ask(name, queues, due & queues) for name, queues in brokers.items()))

    async def _ask(self, broker_name: str, queues: set[MessageQueue], due: set[MessageQueue]) -> None:
        """Send one request for all queues of a broker that wait for a lock, or whose lock is due for renewal."""
        async with self._locks.request_turn(broker_name):
            queues = {queue for queue in queues if queue in self._waits or queue in self._leases}
            if not queues:
                return
            asked_at = self._now()
            granted = await self._locks.lock(broker_name, queues)
            if granted is None:
                return
            if due or broker_name not in self._renewed:
                self._renewed[broker_name] = asked_at
            for queue in queues:
                self._answered(queue, queue in granted, asked_at + LOCK_EXPIRY_SECONDS)

    def _may_be_anothers(self, queue: MessageQueue) -> bool:
        """Return whether another member may still rely on the lock, although a restarted or new master has no locks.

        Also returns True without a connection, because a lock request would open one, and would get the lock before the
        other member could request it again. Heartbeats open the next connection.
        """
        wait, now = self._waits[queue], self._locks.connection(self._locks.broker_of(queue))
        if queue in self._leases or wait.locked_out_on in (None, now):
            return False
        if now is not wait.next_on:
            wait.next_on, wait.next_at = now, self._clock.monotonic()
        return now is None or self._clock.monotonic() - wait.next_at < BROKER_RESTART_SECONDS

    def _answered(self, queue: MessageQueue, granted: bool, until: float) -> None:
        lease, wait = self._leases.get(queue), self._waits.get(queue)
        on = self._locks.connection(self._locks.broker_of(queue))
        if lease is not None:
            if granted and (lease.holds or lease.awaits_new_grant):
                if lease.awaits_new_grant:
                    lease.notify_owner()  # the owner must check the stored offset before it hands out messages
                lease.renew(until, on)
                self._grant(queue)
            else:
                self._lose(queue, "the broker no longer grants it" if not granted else "it could not be renewed")
        elif wait is not None:
            wait.rounds += 1
            if granted:
                self._leases[queue] = QueueLease(self._now, until, on, wait.on_lost)
                self._grant(queue)
                return
            wait.locked_out_on, wait.next_on = on, None
            if wait.rounds == 1:
                log.info("queue.locked_out", queue=str(queue))

    def _grant(self, queue: MessageQueue) -> None:
        wait = self._waits.pop(queue, None)
        if wait is not None and not wait.granted.done():
            wait.granted.set_result(None)

    def _lose(self, queue: MessageQueue, why: str) -> None:
        log.warning("queue.lock_lost", queue=str(queue), why=why)
        lease = self._leases.pop(queue)
        lease.end()
        lease.notify_owner()
