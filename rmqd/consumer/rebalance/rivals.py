"""Detects members of a group's other engine. A group may run on one engine at a time: in Python or on Spark.

The two engines divide a group's queues independently, so both at once would handle every message twice. A client id in
the group's member list shows the engine of its member. Each member sends its heartbeat, then reads the list, and only
then pulls. So if two start at the same time, at least one sees the other.

If both see each other, one must leave, and both must agree which. The *junior* is a Spark driver, if the other is a
local member, or the driver with the higher client id. A junior that starts leaves at once. The *senior* waits for the
junior to leave (`JOINING_SECONDS`). If the other member is still present then, it was there first and is consuming, and
the senior leaves.

A member that already consumes is `clear` and waits longer than a new one, so the new one leaves first. Two consuming
members can meet if one of them was disconnected from the brokers for a while. Then the junior leaves after
`JUNIOR_SECONDS`, before the senior's time ends.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog

from rmqd.client.client_id import host_of, is_spark
from rmqd.clock import Clock
from rmqd.errors import GroupHeldElsewhereError

log = structlog.get_logger(__name__)

JOINING_SECONDS: Final = 3.0  # how long a starting senior waits for the other member to leave
JUNIOR_SECONDS: Final = 15.0  # the same for a junior that already consumes
SENIOR_SECONDS: Final = 30.0  # the same for a senior that already consumes


class Rivals:
    """One member's view of the other engine. `clear` is True once it has received a list without rivals."""

    def __init__(self, group: str, client_id: str, clock: Clock) -> None:
        self._group = group
        self._client_id = client_id
        self._clock = clock
        self._since: float | None = None
        self.clear = False

    def among(self, client_ids: Collection[str]) -> set[str]:
        """Return the rivals of this member: for a local member all Spark drivers, for a Spark driver all others."""
        if is_spark(self._client_id):
            return set(client_ids) - {self._client_id}
        return {client_id for client_id in client_ids if is_spark(client_id)}

    def seen(self, rivals: Collection[str]) -> bool:
        """Called with the present rivals. Return whether this member may consume.

        Raises GroupHeldElsewhereError when the waiting time is over and this member must leave.
        """
        if not rivals:
            self._since, self.clear = None, True
            return True
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since < self._patience_seconds(rivals):
            return self.clear
        other = min(rivals)
        engine, host = "spark" if is_spark(other) else "local", host_of(other)
        log.error(
            "group_held_elsewhere", group=self._group, here=self._client_id, engine=engine, client_id=other, host=host
        )
        raise GroupHeldElsewhereError(self._group, self._client_id, engine, other, host)

    def _patience_seconds(self, rivals: Collection[str]) -> float:
        own = self._client_id
        is_junior = is_spark(own) and any(not is_spark(rival) or rival < own for rival in rivals)
        if self.clear:
            return JUNIOR_SECONDS if is_junior else SENIOR_SECONDS
        return 0.0 if is_junior else JOINING_SECONDS
