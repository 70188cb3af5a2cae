"""Which members the group has, as one of its brokers lists them.

Every member computes its share of the queues from this list, so a wrong list gives a queue to two members or to none.
A broker lists those from which it has had a heartbeat on a connection that still stands. Two things make such a list
wrong for a moment. A broker that was just restarted does not know this member before its next heartbeat: a heartbeat is
sent at once, and the list asked for again. And it does not know all the others yet: where it lacks some that there were
a moment ago, its list is not believed until they had the time to come.

An empty list after an accepted heartbeat has another cause: the broker does not know the group, and creates none
(autoCreateSubscriptionGroup=false). It answers such a heartbeat with success.
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
    """Asks for a group's client ids, and remembers the last list that was believed."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._last: frozenset[str] = frozenset()
        self._believed: dict[str, RemotingConnection | None] = {}  # by address, which connection brought its last list

    @property
    def last(self) -> frozenset[str]:
        """The client ids of the last list that was believed; none before that."""
        return self._last

    async def of(self, topic: str) -> list[str] | None:
        """The client ids as one of the topic's brokers lists them; None while no broker's list can be believed."""
        client, group = self._context.client, self._context.options.group
        route = client.routes.route(topic)
        brokers = [broker.broker_name for broker in route.broker_datas] if route is not None else []
        names = {address: name for name in brokers if (address := client.routes.address(name)) is not None}
        for address in client.replicas.steady_first(random.sample(list(names), len(names))):
            try:
                members = await get_consumer_list(client.remoting, address, group)
                if client.client_id not in members:
                    # a broker that restarted knows us only after the next heartbeat; without us we would get no queue
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
