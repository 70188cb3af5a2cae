"""Members of a group's other engine: a group runs on one engine at a time, in Python or on Spark.

The two engines divide a group's queues in ways that know nothing of each other, so that both at once would handle
everything twice. A member tells by the client ids in the group's member list which engine the others run on. Each one
sends its heartbeat, then reads the list, and only then pulls; so of two that start at the same time at least one sees
the other.

If both see each other, one has to leave, and both must agree which. One is the *junior*: a driver on Spark beside a
local member, and of two drivers the one with the higher client id. At its start the junior leaves at once. The
*senior* waits for the junior to leave (`JOINING_SECONDS`). If the other one is still there then, it was there before
and is consuming, and the senior leaves.

A member that already consumes is `clear` and has more patience than a newcomer, which therefore leaves first. Two that
both consume find each other where one of them was cut off from the brokers for a while: then the junior leaves after
`JUNIOR_SECONDS`, before the senior's patience ends.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog

from rmqd.client.client_id import host_of, is_spark
from rmqd.clock import Clock
from rmqd.errors import GroupHeldElsewhereError

log = structlog.get_logger(__name__)

JOINING_SECONDS: Final = 3.0  # how long a senior that starts waits for the other one to leave
JUNIOR_SECONDS: Final = 15.0  # the same for a junior that consumes already
SENIOR_SECONDS: Final = 30.0  # the same for a senior that consumes already


class Rivals:
    """What one member sees of the other engine. It is `clear` once it has seen a list without any rival."""

    def __init__(self, group: str, client_id: str, clock: Clock) -> None:
        self._group = group
        self._client_id = client_id
        self._clock = clock
        self._since: float | None = None
        self.clear = False

    def among(self, client_ids: Collection[str]) -> set[str]:
        """The rivals among these members: for a local member all drivers on Spark, for such a driver everybody else."""
        if is_spark(self._client_id):
            return set(client_ids) - {self._client_id}
        return {client_id for client_id in client_ids if is_spark(client_id)}

    def seen(self, rivals: Collection[str]) -> bool:
        """Note the rivals of the moment. Returns whether this member may consume.

        Raises GroupHeldElsewhereError once its patience is over and it must leave.
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
