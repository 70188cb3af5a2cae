"""The locks by which an orderly group has each queue consumed by one member at a time, of whatever client.

The locks have the group's own name, as Java's do. Brokers keep them in memory, for 60 s after the last renewal, and we
count them as ours for 30 s only: where the line to the broker is cut, we have stopped half a minute before another
member gets the lock. Therefore nobody's locks are broken: a member that is gone from the list may live behind a cut
line, and that its lock ends by itself is what keeps two members from handling a queue at the same time.

When the connection to a broker ends, the broker may have been restarted and have forgotten all locks. So they count for
nothing until they are granted again on the next connection. The member that had a lock asks for it at once. A member
that was locked out before waits for `RESTART_SECONDS` first, so that it does not get a lock that was only forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.clock import Clock, suspended_seconds, wait_within
from rmqd.consumer.rebalance.broker_locks import RENEW_SECONDS, BrokerLocks
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

EXPIRE_SECONDS: Final = 30.0  # Java: rocketmq.client.rebalance.lockMaxLiveTime; the broker's is 60 s
ASK_SECONDS: Final = 0.2  # how soon a lock that somebody gives up is ours
ASK_PATIENT_SECONDS: Final = 1.0  # the same, once it was waited for so often that it may take long
HASTY_ROUNDS: Final = 100
TICK_SECONDS: Final = 1.0
LINGER_SECONDS: Final = 20.0  # Java: UNLOCK_DELAY_TIME_MILLS
RESTART_SECONDS: Final = 6.0  # until members that had locks on a broker that was restarted have asked again


class QueueLease:
    """One holding of a queue's lock, from the broker's grant to its loss."""

    __slots__ = ("_clock", "_lost", "_on", "_until", "is_ending", "is_told")

    def __init__(
        self, clock: Callable[[], float], until: float, on: RemotingConnection | None, lost: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._until = until
        self._on = on
        self._lost = lost
        self.is_told = False  # whether the queue's owner was told that the lock is in doubt
        self.is_ending = False  # whether the queue is being given up past its time, which handlers may ask

    @property
    def valid(self) -> bool:
        """Whether a handler may rely on having the queue to itself."""
        return not self.is_ending and self.holds

    @property
    def holds(self) -> bool:
        """Whether no other member can have the lock."""
        return self._on is not None and self._on.is_open and self._clock() < self._until

    @property
    def is_cut(self) -> bool:
        """Whether the lock only waits to be granted again on the next connection."""
        return not self.holds and self._clock() < self._until

    def renew(self, until: float, on: RemotingConnection | None) -> None:
        self._until, self._on, self.is_told = until, on, False

    def end(self) -> None:
        self._until = float("-inf")

    def tell(self) -> None:
        """Tell the queue's owner, once, that the lock is in doubt: it hands out nothing before it is granted again."""
        if not self.is_told:
            self.is_told = True
            self._lost()


class _Wait:
    """A queue whose lock somebody waits for."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost = lost
        self.rounds = 0
        self.locked_out_on: RemotingConnection | None = None


class QueueLock:
    """The queue locks of one orderly group in this process."""

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        self.timeouts = 0
        self._locks = BrokerLocks(client, group)
        self._clock = clock
        self._leases: dict[MessageQueue, QueueLease] = {}
        self._waits: dict[MessageQueue, _Wait] = {}
        self._renewed: dict[str, float] = {}  # broker name -> when all of its locks were renewed
        self._wanted = asyncio.Event()

    def _now(self) -> float:
        # a broker's minute goes on while this machine is suspended
        return self._clock.monotonic() + suspended_seconds()

    async def members_are(self, address: str, client_ids: Collection[str]) -> None:
        """Do nothing: not the members but the locks say who has a queue."""

    def noticed(self) -> None:
        """Do nothing: not the members but the locks say who has a queue."""

    async def break_locks(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Do nothing: locks of an orderly group end by themselves only."""

    async def acquire(self, queue: MessageQueue, lost: Callable[[], None], notice_seconds: float = 0.0) -> bool:
        """Return once the queue is locked, however long another member has it."""
        wait = self._waits[queue] = _Wait(lost)
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
        """Unlock a queue, so that its next owner begins; the caller has committed before."""
        broker_name = self._locks.broker_of(queue)
        async with self._locks.turn(broker_name):
            lease = self._leases.pop(queue, None)
            if lease is not None:
                lease.end()
            await self._locks.unlock(broker_name, [queue])

    def linger(self, queue: MessageQueue) -> float:
        """For how long the queue is kept while handlers do not end: as long as Java delays the unlocking.

        No other member can have it meanwhile. Handlers can see by their batch's lease that they are to end.
        """
        lease = self._leases.get(queue)
        if lease is None or not lease.holds:
            return 0.0
        lease.is_ending = True
        return LINGER_SECONDS

    async def close(self, *, calls_left: bool) -> None:
        """Release everything that is still held when the group ends.

        Where calls of the handler may still be running (`calls_left`), nothing is unlocked: the locks end by
        themselves a minute later, so that no other member handles a queue beside such a call.
        """
        if not calls_left:
            await asyncio.gather(*(self.release(queue) for queue in list(self._leases)))

    def holds(self, queue: MessageQueue) -> bool:
        """Whether the lock is ours: its connection stands, and it was renewed in the last 30 s."""
        lease = self._leases.get(queue)
        return lease is not None and lease.holds

    def lease(self, queue: MessageQueue) -> QueueLease | None:
        """The lease under which a batch may be handed out now; None while the lock is not ours."""
        lease = self._leases.get(queue)
        return lease if lease is not None and lease.holds else None

    async def run(self) -> None:
        """Ask for what is waited for, and renew what is held, until cancelled."""
        while True:
            self._wanted.clear()
            await self._round()
            await wait_within(self._clock, self._pause(), self._wanted.wait())

    def _pause(self) -> float:
        if not self._waits:
            return TICK_SECONDS
        hasty = any(wait.rounds < HASTY_ROUNDS for wait in self._waits.values()) and not self._locks.refused
        return ASK_SECONDS if hasty else ASK_PATIENT_SECONDS

    async def _round(self) -> None:
        now = self._now()
        for queue, lease in list(self._leases.items()):
            if lease.holds:
                continue
            if lease.is_cut:
                lease.tell()
            else:
                self._lose(queue, "it could not be renewed")
        due = {
            queue
            for name, queues in self._locks.by_broker(self._leases).items()
            if now - self._renewed.get(name, float("-inf")) >= RENEW_SECONDS or self._locks.may_be_lost(name)
            for queue in queues
        }
        wanted = due.union(queue for queue in self._waits if not self._may_be_anothers(queue))
        brokers = self._locks.by_broker(wanted)
        await asyncio.gather(*(self._ask(name, queues, due & queues) for name, queues in brokers.items()))

    async def _ask(self, broker_name: str, queues: set[MessageQueue], due: set[MessageQueue]) -> None:
        """One request for all queues of a broker: those that are waited for, and those whose locks are due."""
        async with self._locks.turn(broker_name):
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
                self._answered(queue, queue in granted, asked_at + EXPIRE_SECONDS)

    def _may_be_anothers(self, queue: MessageQueue) -> bool:
        """Whether another member may still have the lock, which a broker that was just restarted has forgotten.

        Without a connection it may, too: heartbeats make the next one. A request for the lock would make it as well,
        and get the lock before the other member could ask for it.
        """
        before, now = self._waits[queue].locked_out_on, self._locks.connection(self._locks.broker_of(queue))
        if queue in self._leases or before is None or before is now:
            return False
        return now is None or self._clock.monotonic() - now.made_at < RESTART_SECONDS

    def _answered(self, queue: MessageQueue, granted: bool, until: float) -> None:
        lease, wait, on = (
            self._leases.get(queue),
            self._waits.get(queue),
            self._locks.connection(self._locks.broker_of(queue)),
        )
        if lease is not None:
            if granted and (lease.holds or lease.is_cut):
                if lease.is_cut:
                    lease.tell()  # what was stored meanwhile is looked at before anything is handed out
                lease.renew(until, on)
                self._grant(queue)
            else:
                self._lose(queue, "it is not ours any more" if not granted else "it could not be renewed")
        elif wait is not None:
            wait.rounds += 1
            if granted:
                self._leases[queue] = QueueLease(self._now, until, on, wait.lost)
                self._grant(queue)
                return
            wait.locked_out_on = on
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
        lease.tell()
