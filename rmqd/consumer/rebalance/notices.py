"""Whether brokers notify members of joins and leaves. If not, the member list is polled.

The notification is the request NOTIFY_CONSUMER_IDS_CHANGED. It informs a member with queues that a new member waits for
some of them. Brokers send it by default (`notifyConsumerIdsChangedEnable`). A member also gets it for its own joining,
before the response to its first heartbeat. So each member knows from its start whether its brokers send notifications.
Otherwise a previous owner may need up to `LOOK_SECONDS` to notice a new member, and the new member waits longer by that
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from rmqd.clock import wait_within
from rmqd.consumer.context import GroupContext

LOOK_SECONDS: Final = 2.0


class Notices:
    """The notifications to one member of a group. Sets the context's `notice_seconds`."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._is_clustering = context.options.message_model == "clustering"
        self._is_new = False  # whether a notification arrived since the last member list
        self._members: frozenset[str] = frozenset()
        context.notice_seconds = LOOK_SECONDS

    def came(self) -> None:
        """Called when a broker notified this member of a change."""
        self._is_new = True
        self._context.notice_seconds = 0.0

    def listed(self, members: Collection[str]) -> bool:
        """Called with a broker's member list. Return whether it changed, with or without a notification."""
        before, self._members = self._members, frozenset(members)
        is_other = bool(before) and before != self._members
        if is_other and not self._is_new:
            self._context.notice_seconds = LOOK_SECONDS
        self._is_new = False
        return is_other

    async def wait(self, told: asyncio.Event, seconds: float, look: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `told` is set, for at most `seconds`.

        If brokers send no notifications, also call `look` every two seconds, and return when the members have changed.
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
