"""Decides by the lists of several brokers which members of a group exist, and which have certainly left.

A broker removes a member from its list when the member's connection ends, and lists it again after the heartbeat on its
next connection. So a single list without a member proves little: often the broker or its network has lost all
connections at once, and all members return within seconds. A list proves that a member has left only if our own
connection to that broker has existed for as long as every member needs for its heartbeat (`BACK_SECONDS`), and the list
was requested after that.

Between two lists a member may return and leave again. Its broker sends a notification of each change, so a member
counts as gone only if no notification has arrived for as long as a return may take.

If a member is wrongly regarded as gone, its locks are broken and messages are handled twice. If it is wrongly regarded
as present, other members only wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import structlog

from rmqd.client.api.group import HEARTBEAT_TIMEOUT_SECONDS, get_consumer_list
from rmqd.client.coalesce import Coalesced
from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.errors import RmqdError

log = structlog.get_logger(__name__)

GONE_SECONDS: Final = 70.0  # longer than a lock lives
SURE_SECONDS: Final = 1.0  # a member that lost only its connection soon returns with its next heartbeat
BACK_SECONDS: Final = HEARTBEAT_TIMEOUT_SECONDS  # time in which all members return after all connections were lost
LIST_TIMEOUT_SECONDS: Final = 1.0  # short, because an acquisition waits; without a response the request is repeated


class Departures:
    """Compares each broker's list with its previous one. A joining member appears at one broker before the others."""

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        self._client = client
        self._group = group
        self._clock = clock
        self._lists: dict[str, frozenset[str]] = {}  # broker address -> members
        self._gone: dict[str, float] = {}  # client id -> when it was missed
        self._noticed_at = float("-inf")
        self.hear = Coalesced(self._hear)
        """Request one broker's list now. Returns whether the list proves who has left."""

    @property
    def gone(self) -> Mapping[str, float]:
        """Members that were in a broker's list and are in none any more, with the time when that was noticed."""
        return self._gone

    def noticed(self) -> None:
        """Called when a broker reports a change: a missing member may have returned briefly."""
        self._noticed_at = self._clock.monotonic()

    def is_sure(self, client_id: str) -> bool:
        """Return whether a member has been missing for longer than a reconnection takes."""
        missing_since = max(self._gone.get(client_id, float("inf")), self._noticed_at)
        return self._clock.monotonic() - missing_since >= SURE_SECONDS

    @property
    def is_alone(self) -> bool:
        """Whether the last lists contain no other member, and all earlier members have certainly left."""
        return not self.has_others and all(map(self.is_sure, self._gone))

    @property
    def has_others(self) -> bool:
        """Whether any broker's last list contains another member."""
        return bool(self._present() - {self._client.client_id})

    async def members_are(self, address: str, client_ids: Collection[str]) -> None:
        """Called with the members that one broker lists now.

        If a member disappeared from this list, the other brokers whose last lists contain it are asked again.
        """
        others = self._note(address, client_ids)
        await asyncio.gather(*(self.hear(other) for other in others if not self._client.remoting.is_down(other)))

    async def _hear(self, address: str) -> bool:
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
        has_stood = on is not None and self._clock.monotonic() - on.made_at >= BACK_SECONDS
        return has_stood and client.client_id in client_ids

    def _note(self, address: str, client_ids: Collection[str]) -> list[str]:
        """Store one broker's list. Return the brokers whose last list still contains a member missing here."""
        now = self._clock.monotonic()
        before = self._lists.get(address, frozenset())
        missing = before.difference(client_ids)
        known = self._client.routes.broker_addresses()
        self._lists = {at: ids for at, ids in self._lists.items() if at in known}
        self._lists[address] = frozenset(client_ids)
        present = self._present()
        for client_id in before - present:
            self._gone[client_id] = now
        self._gone = {c: at for c, at in self._gone.items() if c not in present and now - at < GONE_SECONDS}
        return [at for at, ids in self._lists.items() if ids & missing]

    def _present(self) -> frozenset[str]:
        return frozenset().union(*self._lists.values())
