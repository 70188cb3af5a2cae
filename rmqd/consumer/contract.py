"""What the daemon expects of a consumer group, whichever engine runs it: how it is run, ended and asked."""

from __future__ import annotations

from typing import Protocol

from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.consumer.stats.snapshot import GroupSnapshot


class Consumer(Protocol):
    """One consumer group, from its first rebalance to its last commit. Used once: a restart takes a new one."""

    async def run(self) -> None:
        """Consume until `stop` was called and handlers have finished what they had.

        Raises the error after which the group cannot go on; the daemon then starts a new consumer. To cancel this ends
        the group at once: nothing more is committed, and what was not committed is delivered again.
        """

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """Ask for the graceful end: no new pulls, handlers finish up to the group's shutdown timeout, then commit."""

    def hurry(self) -> None:
        """Cut the drain short: abandon running handlers, commit what is finished, and end."""

    async def change(self, options: ConsumerOptions) -> None:
        """Go on with other options, without leaving the group. Returns when they are in force. Raises RmqdError.

        Taken over are those options that are read while the group runs: filters of the same topics, thresholds, sizes
        and intervals of pulls, the rate limit, the concurrency. An option that a part was built with, such as the size
        of batches, stays as it was.
        """

    def pause(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Stop pulling and handing out, and keep the queues. Also before `run`."""

    def resume(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Go on with all that was paused within this scope."""

    @property
    def paused(self) -> bool:
        """Whether the whole group is paused."""

    def snapshot(self) -> GroupSnapshot:
        """The group's state and figures at this moment. It is cheap, and must not fail, even before and after `run`."""
