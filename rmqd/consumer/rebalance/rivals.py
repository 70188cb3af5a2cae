"""Members of a group's other engine: the group runs on one of them at a time.

Each engine heartbeats, then reads the members, and only then pulls; so that of two that start at once one sees the
other at least. Where both do, the junior leaves at once: the driver on Spark, of two drivers the one with the higher
client id. The senior waits so long, and leaves too if the other one stays, which therefore was there before.

While it runs, an engine keeps what it has for a time, longer than a newcomer looks on. Both are kept up where one of
them was cut off from the brokers; the senior then waits until the junior has left.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog

from rmqd.client.client_id import host_of, is_spark
from rmqd.clock import Clock
from rmqd.errors import GroupHeldElsewhereError

log = structlog.get_logger(__name__)

JOINING_SECONDS: Final = 3.0
JUNIOR_SECONDS: Final = 15.0
SENIOR_SECONDS: Final = 30.0


class Rivals:
    """What one member sees of the other engine. `clear` is whether it has seen once that nobody else is there."""

    def __init__(self, group: str, client_id: str, clock: Clock) -> None:
        self._group = group
        self._client_id = client_id
        self._clock = clock
        self._since: float | None = None
        self.clear = False

    def among(self, client_ids: Collection[str]) -> set[str]:
        """Those of a list that must not be there beside this one: for a local member all drivers on Spark, for such a
        driver everybody."""
        if is_spark(self._client_id):
            return set(client_ids) - {self._client_id}
        return {client_id for client_id in client_ids if is_spark(client_id)}

    def seen(self, rivals: Collection[str]) -> bool:
        """Say who is there now: whether this one may consume. Raises GroupHeldElsewhereError once it must leave."""
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
