"""The group's members, as listed by one of its brokers.

Every member computes its queues from this list, so a wrong list assigns a queue to two members or to none. A broker
lists the members that sent it a heartbeat on a connection that is still open. Two things make a list temporarily wrong.
First, a restarted broker does not know this member before its next heartbeat. So a heartbeat is sent at once, and the
list requested again. Second, a restarted broker does not know all other members yet. If recently known members are
missing, the list is not trusted until they had time to reconnect.

An empty list after a successful heartbeat has another cause: the broker does not know the group, and does not create it
(autoCreateSubscriptionGroup=false). It reports success for such a heartbeat.
"""

from __future__ import annotations

import random

import structlog

from rmqd.client.api.group import get_consumer_list
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.context import GroupContext
from rmqd.diagnosis.cluster import unknown_problem
from rmqd.errors import RmqdError

log = structlog.get_logger(__name__)


class MemberList:
    """Requests a group's client ids, and stores the last trusted list."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._last: frozenset[str] = frozenset()
        self._believed: dict[str, RemotingConnection | None] = {}  # address -> connection of its last list

    @property
    def last(self) -> frozenset[str]:
        """The client ids of the last trusted list; empty before that."""
        return self._last

    async def of(self, topic: str) -> list[str] | None:
        """Return the client ids from one of the topic's brokers; None while no broker's list is trusted."""
        client, group = self._context.client, self._context.options.group
        route = client.routes.route(topic)
        brokers = [broker.broker_name for broker in route.broker_datas] if route is not None else []
        names = {address: name for name in brokers if (address := client.routes.address(name)) is not None}
        for address in client.replicas.steady_first(random.sample(list(names), len(names))):
            try:
                members = await get_consumer_list(client.remoting, address, group)
                if client.client_id not in members:
                    # A restarted broker knows this member only after the next heartbeat. Without this member in the
                    # list it would get no queue.
                    await client.heartbeat.beat_address(address)
                    members = await get_consumer_list(client.remoting, address, group)
            except RmqdError as error:
                if not error.is_reported:
                    log.warning("rebalance.members_unknown", topic=topic, address=address, error=str(error))
                continue
            problem = None if members else unknown_problem(f"{names[address]} ({address})", self._context.plain_group)
            self._context.problems.set(("unknown", names[address]), problem)
            if problem is not None:
                continue
            if not self._is_whole(address, members):
                return None
            await self._context.ownership.members_are(address, members)
            return members
        return None

    def _is_whole(self, address: str, members: list[str]) -> bool:
        client, missing = self._context.client, self._last.difference(members)
        connection = client.remoting.connected(address)
        is_same = not self._believed or self._believed.get(address) is connection
        if missing and not is_same and client.replicas.is_new(address):
            log.debug("rebalance.list_doubted", address=address, missing=sorted(missing))
            return False
        self._last, self._believed[address] = frozenset(members), connection
        return True
