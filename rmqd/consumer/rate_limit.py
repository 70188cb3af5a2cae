"""A group's limit of messages per second."""

from __future__ import annotations

import asyncio

from rmqd.clock import Clock


class RateLimit:
    """Spaces pulls so that on average no more than `per_second` messages arrive; 0 is no limit.

    A pull is paid for afterwards, since only the reply tells how many messages came.
    """

    def __init__(self, per_second: float, clock: Clock) -> None:
        self.per_second = per_second
        self._clock = clock
        self._free_at = 0.0

    async def wait(self) -> None:
        """Return when another pull may be sent."""
        if self.per_second and (delay := self._free_at - self._clock.monotonic()) > 0:
            await asyncio.sleep(delay)

    def spend(self, messages: int) -> None:
        """So many messages came."""
        if self.per_second:
            self._free_at = max(self._free_at, self._clock.monotonic()) + messages / self.per_second

    def most(self, pull_batch_size: int) -> int:
        """How many messages a pull may ask for, so that a low rate does not come in bursts."""
        return min(pull_batch_size, max(1, int(self.per_second))) if self.per_second else pull_batch_size
