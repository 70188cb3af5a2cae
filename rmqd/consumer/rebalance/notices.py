"""Whether brokers send a notice when members come and go; where none does, the list of members is looked at instead.

A notice is the request NOTIFY_CONSUMER_IDS_CHANGED. A member that has queues learns by it that another one has come and
waits for some of them. Brokers send it by default (`notifyConsumerIdsChangedEnable`), and a member gets it for its own
joining too, before the answer to its first heartbeat. So each member knows from its start whether its brokers do.
Where they don't, a former owner may need up to `LOOK_SECONDS` to see a newcomer, and the newcomer waits so much longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from rmqd.clock import wait_within
from rmqd.consumer.context import GroupContext

LOOK_SECONDS: Final = 2.0


class Notices:
    """What one member of a group was told. `notice_seconds` of the context is how long others may take to see it."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._is_clustering = context.options.message_model == "clustering"
        self._is_new = False  # whether a notice came since the members were listed the last time
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
        """Wait until `told` is set, for at most `seconds`.

        Where brokers send no notices, also `look` at the list every other second, and return when its members changed.
        """
        clock = self._context.clock
        until = clock.monotonic() + seconds
        while True:
            must_look = self._is_clustering and self._context.notice_seconds > 0
            pause_seconds = until - clock.monotonic()
            if await wait_within(clock, min(pause_seconds, LOOK_SECONDS) if must_look else pause_seconds, told.wait()):
                return
            if clock.monotonic() >= until or await look():
                return
