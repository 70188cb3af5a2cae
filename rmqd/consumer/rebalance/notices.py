"""Whether brokers tell of members that come and go; where none does, the list of members is looked at instead.

A broker that tells (`notifyConsumerIdsChangedEnable`, on by default) tells a member of its own joining too, before the
answer to its first heartbeat. So each member knows from then on, and who has queues learns in time that others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from rmqd.consumer.context import GroupContext

LOOK_SECONDS: Final = 2.0


class Notices:
    """What one member of a group was told. `notice_seconds` of the context is how long others may take to see it."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._is_clustering = context.options.message_model == "clustering"
        self._is_new = False  # one came since the members were listed the last time
        self._members: frozenset[str] = frozenset()
        context.notice_seconds = LOOK_SECONDS

    def came(self) -> None:
        """Note that a broker told this member of a change."""
        self._is_new = True
        self._context.notice_seconds = 0.0

    def listed(self, members: Collection[str]) -> bool:
        """Note the members that a broker lists. Returns whether they changed; perhaps no broker told us of that."""
        before, self._members = self._members, frozenset(members)
        is_other = bool(before) and before != self._members
        if is_other and not self._is_new:
            self._context.notice_seconds = LOOK_SECONDS
        self._is_new = False
        return is_other

    async def wait(self, told: asyncio.Event, seconds: float, look: Callable[[], Awaitable[bool]]) -> None:
        """Wait for `told`, for at most `seconds`.

        Where brokers do not tell, also `look` at the list now and then, and return when that shows other members.
        """
        clock = self._context.clock
        until = clock.monotonic() + seconds
        while True:
            must_look = self._is_clustering and self._context.notice_seconds > 0
            pause_seconds = until - clock.monotonic()
            with contextlib.suppress(TimeoutError):
                async with clock.timeout(min(pause_seconds, LOOK_SECONDS) if must_look else pause_seconds):
                    await told.wait()
                return
            if clock.monotonic() >= until or await look():
                return
