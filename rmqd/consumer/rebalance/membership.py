"""The members of a group: their lists from brokers, notifications of changes, and the proof that a member has left.

`ChangeNotifications` records whether brokers notify members of joins and leaves. If not, the member list is polled.

The notification is the request NOTIFY_CONSUMER_IDS_CHANGED. It informs a member with queues that a new member waits for
some of them. Brokers send it by default (`notifyConsumerIdsChangedEnable`). A member also gets it for its own joining,
before the response to its first heartbeat. So each member knows from its start whether its brokers send notifications.
If they do not, a previous owner may need up to `POLL_SECONDS` to notice a new member, and the new member waits longer
by that time.

`MemberList` reads the group's members from one of its brokers.

Every member computes its queues from this list, so a wrong list assigns a queue to two members or to none. A broker
lists the members that sent it a heartbeat on a connection that is still open. Two things make a list temporarily wrong.
First, a restarted broker does not know this member before its next heartbeat. So a heartbeat is sent at once, and the
list requested again. Second, a restarted broker does not know all other members yet. If recently known members are
missing, the list is not trusted until they had time to reconnect.

An empty list after a successful heartbeat has another cause: the broker does not know the group, and does not create it
(autoCreateSubscriptionGroup=false). It reports success for such a heartbeat.

`MissingBrokerQueues` keeps this member's queues on brokers that are down and missing from all routes.

Name servers remove a silent broker from the routes, and a rebalance would then release its queues. That has no benefit,
because no member can consume them, and it causes duplicates. A queue that is released and acquired again continues at
the offset that the broker last wrote to disk, and messages handled since then would be handled again. So such queues
are kept for ten minutes, with their caches and their known offsets.

`MissingMembers` compares the lists of several brokers, and decides which members have certainly left.

A broker removes a member from its list when the member's connection ends, and lists it again after the heartbeat on its
next connection. So a single list without a member proves little: often the broker or its network has lost all
connections at once, and all members return within seconds. A list proves that a member has left only if our own
connection to that broker has existed for as long as every member needs for its heartbeat (`MEMBER_RETURN_SECONDS`), and
the list was requested after that.

Between two lists a member may return and leave again. Its broker sends a notification of each change, so a member
counts as gone only if no notification has arrived for as long as a return may take.

If a member is wrongly regarded as gone, its locks are broken and messages are handled twice. If it is wrongly regarded
as present, other members only wait.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import structlog

from rmqd.client.api.group_requests import HEARTBEAT_TIMEOUT_SECONDS, get_consumer_list
from rmqd.client.api.remoting_request import SharedCalls
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.context import GroupContext
from rmqd.consumer.health.group_problems import unknown_group_problem
from rmqd.errors import RmqdError
from rmqd.runtime.clock import Clock, wait_within
from rmqd.wire.message_queue import MessageQueue

POLL_SECONDS: Final = 2.0


class ChangeNotifications:
    """Records whether brokers notify this member of changes. Sets the context's `max_notice_delay_seconds`."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._is_clustering = context.options.message_model == "clustering"
        self._is_new = False  # whether a notification arrived since the last member list
        self._members: frozenset[str] = frozenset()
        context.max_notice_delay_seconds = POLL_SECONDS

    def on_notification(self) -> None:
        """Called when a broker notified this member of a change."""
        self._is_new = True
        self._context.max_notice_delay_seconds = 0.0

    def on_member_list(self, members: Collection[str]) -> bool:
        """Called with a broker's member list. Return whether the members have changed since the last list."""
        before, self._members = self._members, frozenset(members)
        is_other = bool(before) and before != self._members
        if is_other and not self._is_new:
            self._context.max_notice_delay_seconds = POLL_SECONDS
        self._is_new = False
        return is_other

    async def wait(self, changed: asyncio.Event, seconds: float, poll: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a notification sets `changed`, for at most `seconds`.

        If brokers send no notifications, also call `poll` every two seconds until it reports a change of the members.
        """
        clock = self._context.clock
        until = clock.monotonic() + seconds
        while True:
            must_poll = self._is_clustering and self._context.max_notice_delay_seconds > 0
            left = until - clock.monotonic()
            if await wait_within(clock, min(left, POLL_SECONDS) if must_poll else left, changed.wait()):
                return
            if clock.monotonic() >= until or await poll():
                return


log = structlog.get_logger(__name__)


class MemberList:
    """Requests a group's client ids, and stores the last trusted list."""

    def __init__(self, context: GroupContext) -> None:
        self.last_trusted: frozenset[str] = frozenset()
        """The client ids of the last trusted list; empty before that."""
        self._context = context
        self._believed: dict[str, RemotingConnection | None] = {}  # address -> connection of its last list

    async def client_ids_for(self, topic: str) -> list[str] | None:
        """Return the client ids from one of the topic's brokers; None while no broker's list is trusted."""
        client, group = self._context.client, self._context.options.group
        brokers = client.routes.broker_names(topic)
        names = {address: name for name in brokers if (address := client.routes.address(name)) is not None}
        for address in client.replicas.sorted_by_preference(random.sample(list(names), len(names))):
            try:
                members = await get_consumer_list(client.remoting, address, group)
                if client.client_id not in members:  # a restarted broker knows this member only after a heartbeat
                    await client.heartbeat.send_heartbeat_to(address)
                    members = await get_consumer_list(client.remoting, address, group)
            except RmqdError as error:
                if not error.is_reported:
                    log.warning("rebalance.members_unknown", topic=topic, address=address, error=str(error))
                continue
            where, group_without_namespace = (
                f"{names[address]} ({address})",
                self._context.options.group_without_namespace,
            )
            problem = None if members else unknown_group_problem(where, group_without_namespace)
            self._context.problems.set(("unknown", names[address]), problem)
            if problem is not None:
                continue
            if not self._is_whole(address, members):
                return None
            await self._context.ownership.on_member_list(address, members)
            return members
        return None

    def _is_whole(self, address: str, members: list[str]) -> bool:
        client, missing = self._context.client, self.last_trusted.difference(members)
        connection = client.remoting.connected(address)
        is_same = not self._believed or self._believed.get(address) is connection
        if missing and not is_same and client.replicas.is_newly_connected(address):
            log.debug("rebalance.list_doubted", address=address, missing=sorted(missing))
            return False
        self.last_trusted, self._believed[address] = frozenset(members), connection
        return True


MISSING_BROKER_SECONDS: Final = 3.0  # within this time the routes of all topics are requested at least once
KEEP_QUEUES_SECONDS: Final = 600.0  # a broker counts as removed after this time, in which its machine can be replaced


class MissingBrokerQueues:
    """Tracks the missing brokers of one group, and decides which of their queues this member keeps."""

    def __init__(self, client: ClientInstance, clock: Clock) -> None:
        self.needs_recheck = False
        """Whether another check should follow soon."""
        self._client = client
        self._clock = clock
        self._since: dict[str, float] = {}  # broker name -> when it was first missing (monotonic)
        # (topic, name of a reachable broker) -> when the topic's route first lacked the broker (monotonic)
        self._missed: dict[tuple[str, str], float] = {}

    def kept_queues(self, topic: str, held: Collection[MessageQueue]) -> frozenset[MessageQueue]:
        """Return the held queues of a topic that must be kept although the topic's route does not contain them."""
        present = frozenset(self._client.routes.broker_names(topic))
        endpoints = {queue: self._client.routes.endpoint(queue) for queue in held}
        for name in present & self._since.keys():
            log.info("broker.returned", broker=name, seconds=round(self._clock.monotonic() - self._since.pop(name)))
        for name in present:
            self._missed.pop((topic, name), None)
        self.needs_recheck = False
        away = {name for name in set(endpoints.values()) - present if self._is_away(topic, name)}
        return frozenset(queue for queue, name in endpoints.items() if name in away)

    def _is_away(self, topic: str, name: str) -> bool:
        now, routes = self._clock.monotonic(), self._client.routes
        if self._client.replicas.is_reachable(name):
            if (topic, name) not in self._missed:
                self._missed[topic, name] = now
                routes.refresh_soon()
            is_unsure = now - self._missed[topic, name] < MISSING_BROKER_SECONDS
            self.needs_recheck = self.needs_recheck or is_unsure
            # A reachable broker that is in other topics' routes does not have this topic any more. A reachable broker
            # in no route has not registered yet with a name server that has just restarted.
            return is_unsure or name not in routes.brokers()
        if name not in self._since:
            log.warning("broker.away", broker=name, kept_seconds=KEEP_QUEUES_SECONDS)
            self._since[name] = now
        return now - self._since[name] < KEEP_QUEUES_SECONDS


REMEMBER_MISSING_MEMBER_SECONDS: Final = 70.0  # longer than the broker keeps a lock without renewal
MISSING_MEMBER_SECONDS: Final = 1.0  # a member that lost only its connection soon returns with its next heartbeat
MEMBER_RETURN_SECONDS: Final = HEARTBEAT_TIMEOUT_SECONDS  # time for members to return to a broker that lost them all
LIST_TIMEOUT_SECONDS: Final = 1.0  # a short timeout, because an acquisition waits; the request is repeated


class MissingMembers:
    """Finds members that have left: a missing member was in a broker's previous list, and is in no broker's list now.

    Each list is compared with the same broker's previous list, because a joining member appears at one broker first.
    """

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        self._client = client
        self._group = group
        self._clock = clock
        self._lists: dict[str, frozenset[str]] = {}  # broker address -> members
        self.first_missing_at: dict[str, float] = {}
        """Members that left the lists of all brokers -> when they were first missing (monotonic)."""
        self._changed_at = float("-inf")
        self.query_members = SharedCalls(self._query_members)
        """Request a broker's list, by its address. Returns whether members missing in the list have certainly left."""

    def on_members_changed(self) -> None:
        """Called when a broker reports a change: a missing member may have returned briefly."""
        self._changed_at = self._clock.monotonic()

    def is_certainly_missing(self, client_id: str) -> bool:
        """Return whether a member has been missing for longer than a reconnection takes."""
        missing_since = max(self.first_missing_at.get(client_id, float("inf")), self._changed_at)
        return self._clock.monotonic() - missing_since >= MISSING_MEMBER_SECONDS

    @property
    def is_alone(self) -> bool:
        """Whether the last lists contain no other member, and all earlier members have certainly left."""
        return not self.has_others and all(map(self.is_certainly_missing, self.first_missing_at))

    @property
    def has_others(self) -> bool:
        """Whether any broker's last list contains another member."""
        return bool(self._present() - {self._client.client_id})

    async def on_member_list(self, address: str, client_ids: Collection[str]) -> None:
        """Called with the client ids in the list of the broker at `address`.

        If a member has disappeared from this list, the other brokers that still listed the member are asked again.
        """
        others = self._note(address, client_ids)
        await asyncio.gather(
            *(self.query_members(other) for other in others if not self._client.remoting.is_down(other))
        )

    async def _query_members(self, address: str) -> bool:
        client = self._client
        try:
            client_ids = await get_consumer_list(
                client.remoting, address, self._group, timeout_seconds=LIST_TIMEOUT_SECONDS
            )
        except RmqdError as error:
            log.debug("rebalance.members_unknown", address=address, error=str(error))
            return False
        self._note(address, client_ids)
        on = client.remoting.connected(address)
        has_stood = on is not None and self._clock.monotonic() - on.made_at >= MEMBER_RETURN_SECONDS
        return has_stood and client.client_id in client_ids

    def _note(self, address: str, client_ids: Collection[str]) -> list[str]:
        """Store one broker's list. Return the addresses of brokers that still list a member that has left this list."""
        now = self._clock.monotonic()
        before = self._lists.get(address, frozenset())
        missing = before.difference(client_ids)
        known = self._client.routes.broker_addresses()
        self._lists = {at: ids for at, ids in self._lists.items() if at in known}
        self._lists[address] = frozenset(client_ids)
        present = self._present()
        for client_id in before - present:
            self.first_missing_at[client_id] = now
        self.first_missing_at = {
            c: at
            for c, at in self.first_missing_at.items()
            if c not in present and now - at < REMEMBER_MISSING_MEMBER_SECONDS
        }
        return [at for at, ids in self._lists.items() if ids & missing]

    def _present(self) -> frozenset[str]:
        return frozenset().union(*self._lists.values())
