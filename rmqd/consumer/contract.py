"""What the process around it expects of a consumer: how it is run, ended and asked."""

from __future__ import annotations

from typing import Protocol

from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.consumer.stats.snapshot import GroupSnapshot


class Consumer(Protocol):
    """One consumer group, from its first rebalance to its last commit. Used once: a restart takes a new one."""

    async def run(self) -> None:
        """Consume until `stop` was called and the drain is over.

        Raises whatever the group cannot go on after; the owner then starts a new consumer. Cancelling gives up at
        once: nothing more is committed, and what was not committed is delivered again.
        """

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """Ask for the graceful end: no new pulls, handlers finish up to the group's shutdown timeout, then commit."""

    def hurry(self) -> None:
        """Cut the drain short: abandon running handlers, commit what is finished, and end."""

    async def change(self, options: ConsumerOptions) -> None:
        """Go on with other options, without leaving the group. Returns when they hold; raises RmqdError.

        Filters of the same topics, thresholds, sizes and intervals of pulls, the rate limit, and what else is read
        while it runs are taken over. What parts were built with stays, such as the concurrency.
        """

    def pause(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Stop pulling and handing out, and keep the queues. Also before `run`."""

    def resume(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Go on with all that was paused within this scope."""

    @property
    def paused(self) -> bool:
        """Whether the whole group is paused."""

    def snapshot(self) -> GroupSnapshot:
        """What the group does right now. Cheap; must not fail, also before `run` and after its end."""
