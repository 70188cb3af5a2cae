"""A group's limit of messages per second."""

from __future__ import annotations

import asyncio

from rmqd.clock import Clock, wait_within


class RateLimit:
    """Spaces pulls so that on average at most `per_second` messages arrive; 0 disables the limit.

    A pull is charged afterwards, because only the response shows how many messages arrived.
    """

    def __init__(self, per_second: float, clock: Clock) -> None:
        self.per_second = per_second
        self._clock = clock
        self._free_at = 0.0
        self._changed = asyncio.Event()

    def change(self, per_second: float) -> None:
        """Apply another limit at once. The remaining pause, also of a current `wait`, is converted to the new rate."""
        if per_second == self.per_second:
            return
        now = self._clock.monotonic()
        owed = max(0.0, self._free_at - now) * self.per_second
        self.per_second = per_second
        self._free_at = now + owed / per_second if per_second else now
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Return when another pull may be sent."""
        while self.per_second and (delay := self._free_at - self._clock.monotonic()) > 0:
            await wait_within(self._clock, delay, self._changed.wait())

    def spend(self, messages: int) -> None:
        """Charge the messages of a response: the next pulls wait for them."""
        if self.per_second:
            self._free_at = max(self._free_at, self._clock.monotonic()) + messages / self.per_second

    def most(self, pull_batch_size: int) -> int:
        """Return how many messages a pull may request, so that a low rate does not cause bursts."""
        return min(pull_batch_size, max(1, int(self.per_second))) if self.per_second else pull_batch_size
