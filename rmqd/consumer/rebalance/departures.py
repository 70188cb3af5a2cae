"""Which members of a group are there, and which are surely gone, by the lists of several brokers.

A broker takes a member out of its list when the member's connection ends, and lists it again after the heartbeat on its
next connection. So one list without a member proves little: often it is the broker, or the line to it, that has lost
all connections at once, and all members come back within seconds. A list proves that a member is gone only if our own
connection to that broker has stood for as long as every member needs for its heartbeat (`BACK_SECONDS`), and the list
was asked for after that.

Between two looks at a list a member may be back, and gone again. Its broker sends a notice of each change, so a member
counts as gone only when no notice has come for as long as it may take to come back.

Wrongly to believe that a member is gone breaks its locks, and messages are handled twice. Wrongly to believe that it is
there only makes others wait.
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
SURE_SECONDS: Final = 1.0  # a member whose connection alone was cut is back with its next heartbeat, which is soon
BACK_SECONDS: Final = HEARTBEAT_TIMEOUT_SECONDS  # in which all are back where all connections were cut
LIST_TIMEOUT_SECONDS: Final = 1.0  # short, as a take-over waits meanwhile; without an answer it is asked again


class Departures:
    """Compares each broker's list with its last one. A member that joins is known to one of them before the others."""

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        self._client = client
        self._group = group
        self._clock = clock
        self._lists: dict[str, frozenset[str]] = {}  # by broker address
        self._gone: dict[str, float] = {}  # client id -> when it was missed
        self._noticed_at = float("-inf")
        self.hear = Coalesced(self._hear)
        """Ask one broker now. Returns whether its list proves who has gone."""

    @property
    def gone(self) -> Mapping[str, float]:
        """The members that were in a broker's list and are in none any more, with the time when that was seen."""
        return self._gone

    def noticed(self) -> None:
        """Hear a broker's notice: who is missing may have come back for a moment."""
        self._noticed_at = self._clock.monotonic()

    def is_sure(self, client_id: str) -> bool:
        """Whether a member has been missing for longer than it takes to come back by another connection."""
        missing_since = max(self._gone.get(client_id, float("inf")), self._noticed_at)
        return self._clock.monotonic() - missing_since >= SURE_SECONDS

    @property
    def is_alone(self) -> bool:
        """Whether the last lists have no other member, and those that were in them before are surely gone."""
        return not self.has_others and all(map(self.is_sure, self._gone))

    @property
    def has_others(self) -> bool:
        """Whether any broker's last list has another member."""
        return bool(self._present() - {self._client.client_id})

    async def members_are(self, address: str, client_ids: Collection[str]) -> None:
        """Note the members that one broker lists now.

        Where it lacks one that it had, the other brokers whose last lists have that member are asked again.
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
        """Keep one broker's list. Returns the brokers whose last list still has a member that is missing from it."""
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
