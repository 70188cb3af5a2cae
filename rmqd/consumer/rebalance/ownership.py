"""Ownership locks between rmqd members: a new owner waits until the previous one has finished and committed.

After a rebalance two members overlap for a moment: the new owner may start while the previous one still has uncommitted
messages in flight. Java's client starts at once, and those messages are handled twice. rmqd members show each other
their queues by a lock at the broker. The owner holds it from before it reads the stored offset until its last commit is
confirmed. The next owner requests it repeatedly (`acquire`), for at most `queue_handover_timeout`. Then it starts
without the lock, and messages that the previous owner still finishes are handled twice.

The lock is the broker's ordinary queue lock, under the group's name plus a suffix. The group's own name cannot be used:
while a group holds a lock under that name, the broker dead-letters every message that is *sent* to its retry topic.
Members of other clients hold no such lock. They are asked whether they still own the queue (`OtherOwners`).

A killed member leaves its locks behind for up to a minute. If the member lists of several brokers prove that it is gone
(`MissingMembers`), the other members unlock in its name.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from rmqd.client.api.group_requests import consumer_connection, consumer_running_info
from rmqd.client.api.remoting_request import SharedCalls
from rmqd.client.client_options import is_spark_client_id
from rmqd.client.instance import ClientInstance
from rmqd.consumer.rebalance.membership import MISSING_MEMBER_SECONDS, MissingMembers
from rmqd.consumer.rebalance.queue_lock import RENEW_INTERVAL_SECONDS, BrokerLocks
from rmqd.consumer.services import Ownership
from rmqd.errors import GroupHeldElsewhereError, RmqdError
from rmqd.runtime.clock import Clock, wait_for_tick
from rmqd.wire.command import LANGUAGE
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

STARTING_SENIOR_WAIT_SECONDS: Final = 3.0  # how long a starting senior (`EngineConflict`) waits for the others to leave
JUNIOR_WAIT_SECONDS: Final = 15.0  # the same for a junior that already consumes; a starting junior does not wait
SENIOR_WAIT_SECONDS: Final = 30.0  # the same for a senior that already consumes


class EngineConflict:
    """One member's view of the other engine's members. `clear` is True once a member list contained none of them.

    A group runs either locally or on Spark. A driver is *junior* to local members and to drivers with lower client ids.
    """

    def __init__(self, group: str, client_id: str, clock: Clock) -> None:
        self._group = group
        self._client_id = client_id
        self._clock = clock
        self._since: float | None = None
        self.was_clear = False

    def other_engine_members(self, client_ids: Collection[str]) -> set[str]:
        """Return the conflicting members: for a local member all Spark drivers, for a driver all other members."""
        if is_spark_client_id(self._client_id):
            return set(client_ids) - {self._client_id}
        return {client_id for client_id in client_ids if is_spark_client_id(client_id)}

    def may_consume(self, others: Collection[str]) -> bool:
        """Return whether this member may consume. `others` is the result of `other_engine_members`.

        Raises GroupHeldElsewhereError when the waiting time is over and this member must leave.
        """
        if not others:
            self._since, self.was_clear = None, True
            return True
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since < self._max_wait_seconds(others):
            return self.was_clear
        other = min(others)
        engine, host = "spark" if is_spark_client_id(other) else "local", other.partition("@")[0]
        log.error(
            "group_held_elsewhere", group=self._group, here=self._client_id, engine=engine, client_id=other, host=host
        )
        raise GroupHeldElsewhereError(self._group, self._client_id, engine, other, host)

    def _max_wait_seconds(self, others: Collection[str]) -> float:
        own = self._client_id
        is_junior = is_spark_client_id(own) and any(not is_spark_client_id(other) or other < own for other in others)
        if self.was_clear:
            return JUNIOR_WAIT_SECONDS if is_junior else SENIOR_WAIT_SECONDS
        return 0.0 if is_junior else STARTING_SENIOR_WAIT_SECONDS


class OtherOwners:
    """Finds the queues that a group's Java, Go or other clients own. Brokers list each member's language."""

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        self._client = client
        self._group = group
        self._clock = clock
        self._queues = SharedCalls(self._ask)
        self._asking: set[asyncio.Task[frozenset[MessageQueue]]] = set()

    async def has_other_owner(self, queue: MessageQueue, address: str, within_seconds: float) -> bool:
        """Return whether a member that is not rmqd owns the queue; True if that is unknown after `within_seconds`.

        A member that does not respond counts as having no queues: its client cannot respond, or it no longer exists.
        """
        # a separate task, because a cancelled caller must not cancel the request: the broker would seem unresponsive
        asking = asyncio.create_task(self._queues(address), name=f"other-owners:{address}")
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        await self._clock.wait((asking,), timeout=within_seconds)
        return not asking.done() or queue in asking.result()

    def close(self) -> None:
        """Stop waiting for responses."""
        for asking in self._asking:
            asking.cancel()

    async def _ask(self, address: str) -> frozenset[MessageQueue]:
        remoting, queues = self._client.remoting, frozenset[MessageQueue]()
        try:
            members = (await consumer_connection(remoting, address, self._group)).connection_set
        except RmqdError as error:
            log.debug("ownership.owners_unknown", address=address, error=str(error))
            return queues
        for client_id in sorted({one.client_id for one in members if one.language != LANGUAGE.name}):
            try:  # sequential, because each request occupies a thread of the broker
                queues |= (await consumer_running_info(remoting, address, self._group, client_id)).mq_table.keys()
            except RmqdError as error:
                log.debug("ownership.owners_unknown", address=address, client_id=client_id, error=str(error))
        return queues


LOCK_NAME_SUFFIX: Final = "-rmqd-owner"
LOCK_RETRY_SECONDS: Final = 1.0  # interval of requests for locks that owned queues lack
LOCK_POLL_SECONDS: Final = 0.05  # interval of requests for the lock of a queue that is being acquired
OTHER_CLIENT_QUERY_SECONDS: Final = 0.25  # interval of requests to a member that is not rmqd
MAX_POLLED_QUEUES: Final = 100  # if more queues wait for their locks, each lock is requested less often


class QueueOwnership(Ownership):
    """Acquires, renews and releases the ownership locks of one group, for this process.

    The lock only delays a new owner: the rebalance decides who owns a queue.
    """

    def __init__(self, client: ClientInstance, group: str, timeout_seconds: float, clock: Clock) -> None:
        self._client = client
        self._locks = BrokerLocks(client, group + LOCK_NAME_SUFFIX)
        self._timeout = timeout_seconds
        self._clock = clock
        self._owned: set[MessageQueue] = set()
        self._locked: set[MessageQueue] = set()
        self._missing_members = MissingMembers(client, group, clock)
        self._others = OtherOwners(client, group, clock)
        self._broken: dict[tuple[str, str], float] = {}  # broken locks: (client id, topic) -> when it was first missing
        self._to_break: dict[str, list[MessageQueue]] = {}  # topic -> queues that missing members may still have locked
        self._asking: dict[str, set[MessageQueue]] = defaultdict(set)  # broker name -> queues to lock
        self._leaving: dict[str, set[MessageQueue]] = defaultdict(set)  # broker name -> queues to unlock
        self._waiting = 0  # number of queues that this member waits for
        self.timeouts = 0

    async def on_member_list(self, address: str, client_ids: Collection[str]) -> None:
        await self._missing_members.on_member_list(address, client_ids)

    def on_members_changed(self) -> None:
        self._missing_members.on_members_changed()

    async def break_locks(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Break the locks that missing members hold on these queues; otherwise the locks last up to a minute.

        Every member does this, even if it does not acquire the queues. If a missing member may still return, or a
        broker's list proves nothing yet, `run` tries again.
        """
        if not self._unbroken(topic):
            self._to_break.pop(topic, None)
            return
        self._to_break[topic] = list(queues)
        if not any(map(self._missing_members.is_certainly_missing, self._unbroken(topic))):
            return
        brokers = self._locks.by_broker(queues)
        answered = dict(zip(brokers, await asyncio.gather(*map(self._query_members, brokers)), strict=True))
        sure = [broker_name for broker_name, is_answered in answered.items() if is_answered]
        for client_id, at in self._unbroken(topic).items():
            if self._missing_members.is_certainly_missing(client_id):
                results = await asyncio.gather(*(self._locks.unlock(name, brokers[name], client_id) for name in sure))
                if len(sure) == len(brokers) and all(results):
                    self._broken[client_id, topic] = at

    async def acquire(
        self, queue: MessageQueue, on_lost: Callable[[], None], max_notice_delay_seconds: float = 0.0
    ) -> bool:
        """Wait until the previous owner has released the queue or is gone, for at most `queue_handover_timeout`.

        If brokers do not notify members, the previous owner may notice this member up to `max_notice_delay_seconds`
        later, and the wait is longer by that time. The wait is also longer if the topic's queues have changed, because
        the previous owner may not know them yet. Time while this member cannot reach the queue's broker does not count:
        the previous owner may reach the broker, and this member could not start anyway. Returns False after a timeout:
        the queue is owned then too.
        """
        self._waiting += 1
        try:
            return await self._wait_for_former(queue, max_notice_delay_seconds)
        finally:
            self._waiting -= 1

    async def _wait_for_former(self, queue: MessageQueue, max_notice_delay_seconds: float) -> bool:
        begun = self._clock.monotonic()
        waited = timed_out = False
        while True:
            is_locked, now = await self._lock(queue), self._clock.monotonic()
            if self._is_out_of_reach(queue):
                begun = now
            left = max(begun + max_notice_delay_seconds, self._seen_by_all_at(queue)) + self._timeout - now
            if is_locked and not await self._is_kept(queue, left):
                break
            if not is_locked and now - begun >= MISSING_MEMBER_SECONDS and await self._is_left_alone(queue):
                break
            if left <= 0:
                self.timeouts += 1
                timed_out = True
                log.warning("queue.handover_timed_out", queue=str(queue), seconds=round(now - begun, 1))
                break
            waited = True
            pause_seconds = (
                LOCK_RETRY_SECONDS
                if self._locks.refused
                else OTHER_CLIENT_QUERY_SECONDS
                if is_locked
                else LOCK_POLL_SECONDS
            )
            await self._clock.sleep(
                min(left, max(pause_seconds, LOCK_POLL_SECONDS * self._waiting / MAX_POLLED_QUEUES))
            )
        self._owned.add(queue)
        if waited:
            log.info("queue.handed_over", queue=str(queue))
        return not timed_out

    async def _is_kept(self, queue: MessageQueue, seconds: float) -> bool:
        """Return whether a member of another client still owns the queue; True if that is unknown after `seconds`."""
        address = self._client.routes.address(self._locks.broker_of(queue))
        return (
            self._missing_members.has_others
            and address is not None
            and await self._others.has_other_owner(queue, address, seconds)
        )

    async def release(self, queue: MessageQueue) -> None:
        self._owned.discard(queue)
        broker_name = self._locks.broker_of(queue)
        leaving = self._leaving[broker_name]
        leaving.add(queue)
        async with self._locks.request_turn(broker_name):
            self._locked.discard(queue)  # not earlier: a request in flight may still lock the queue
            if queue in leaving:
                queues = frozenset(leaving)
                leaving.clear()
                await self._locks.unlock(broker_name, queues)

    async def close(self, *, calls_left: bool) -> None:
        """Release all queues, even while handler calls still run: other members should not wait any longer."""
        self._others.close()
        await asyncio.gather(*(self.release(queue) for queue in list(self._owned)))

    async def run(self) -> None:
        renewed = self._clock.monotonic()

        def has_all() -> bool:
            is_due = self._to_break or self._clock.monotonic() - renewed >= RENEW_INTERVAL_SECONDS
            return not is_due and not self._may_lack_locks()

        while True:
            await wait_for_tick(self._clock, LOCK_RETRY_SECONDS, has_all)
            if self._to_break:
                await asyncio.gather(*(self.break_locks(topic, queues) for topic, queues in self._to_break.items()))
            if self._clock.monotonic() - renewed >= RENEW_INTERVAL_SECONDS:
                renewed = self._clock.monotonic()
                await self._claim(self._owned)
            elif self._may_lack_locks():
                brokers = self._locks.by_broker(self._locked if self._locks.may_any_have_lost_locks() else ())
                lost = {
                    queue for name, own in brokers.items() if self._locks.may_have_lost_locks(name) for queue in own
                }
                await self._claim((self._owned - self._locked) | lost)

    def _may_lack_locks(self) -> bool:
        return not self._locks.refused and (
            len(self._owned) != len(self._locked) or self._locks.may_any_have_lost_locks()
        )

    def _seen_by_all_at(self, queue: MessageQueue) -> float:
        """Return when every member knows the topic's current queues (monotonic); -inf if brokers refuse locks."""
        return float("-inf") if self._locks.refused else self._client.routes.known_everywhere_at(queue.topic)

    def _is_out_of_reach(self, queue: MessageQueue) -> bool:
        address = self._client.routes.address(self._locks.broker_of(queue))
        return address is None or self._client.remoting.is_down(address)

    async def _is_left_alone(self, queue: MessageQueue) -> bool:
        """Return whether no other member can still commit: none is listed, and none is about to reconnect."""
        if not self._missing_members.is_alone:
            return False
        routes, remoting = self._client.routes, self._client.remoting
        address = routes.address(self._locks.broker_of(queue))
        # A member that has not reconnected to this broker yet may already be in the lists of other brokers.
        others = map(routes.address, {one.broker_name for one in routes.queues(queue.topic)})
        reached = {other for other in others if other is not None and not remoting.is_down(other)}
        brokers = reached if address is None else {address, *reached}
        answered = await asyncio.gather(*map(self._missing_members.query_members, sorted(brokers)))
        return all(answered) and self._missing_members.is_alone

    async def _query_members(self, broker_name: str) -> bool:
        address = self._client.routes.address(broker_name)
        return address is not None and await self._missing_members.query_members(address)

    def _unbroken(self, topic: str) -> dict[str, float]:
        """Return the missing members whose locks in this topic are not broken yet, and when each was first missing."""
        gone = self._missing_members.first_missing_at
        self._broken = {broken: at for broken, at in self._broken.items() if gone.get(broken[0]) == at}
        return {client_id: at for client_id, at in gone.items() if (client_id, topic) not in self._broken}

    async def _claim(self, queues: Collection[MessageQueue]) -> None:
        await asyncio.gather(*(self._claim_at(name, named) for name, named in self._locks.by_broker(queues).items()))

    async def _claim_at(self, broker_name: str, queues: set[MessageQueue]) -> None:
        async with self._locks.request_turn(broker_name):
            wanted = queues & self._owned
            granted = (await self._locks.lock(broker_name, wanted) if wanted else None) or frozenset()
        self._locked -= wanted - granted
        self._locked |= granted & self._owned

    async def _lock(self, queue: MessageQueue) -> bool:
        """Request the queue's lock, in one request with all other queues of its broker that wait at that time."""
        broker_name = self._locks.broker_of(queue)
        asking = self._asking[broker_name]
        asking.add(queue)
        try:
            async with self._locks.request_turn(broker_name):
                await asyncio.sleep(0)  # until the other queues of the same rebalance are in `asking`
                if queue in asking:
                    queues = frozenset(asking)
                    asking.clear()
                    self._locked |= await self._locks.lock(broker_name, queues) or frozenset()
        finally:
            asking.discard(queue)
        return queue in self._locked
