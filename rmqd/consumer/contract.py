"""The interface between the daemon and a consumer group on any engine."""

from __future__ import annotations

from typing import Protocol

from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.consumer.stats.snapshot import GroupSnapshot


class Consumer(Protocol):
    """One consumer group, from its first rebalance to its last commit. Used once: a restart creates a new one."""

    async def run(self) -> None:
        """Consume until `stop` is called and the handlers have finished their batches.

        Raises the error that ends the group; the daemon then starts a new consumer. Cancelling ends the group at once
        without a commit, so messages that are not committed are delivered again.
        """

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """Request a graceful end: no new pulls, handlers get the group's shutdown timeout to finish, then a commit."""

    def hurry(self) -> None:
        """Cut the drain short: abandon running handlers, commit finished messages, and end."""

    async def change(self, options: ConsumerOptions) -> None:
        """Apply changed options without leaving the group. Return when they are in force. Raises RmqdError.

        Only options that are read while the group runs can change: filters of the same topics, thresholds, sizes and
        intervals of pulls, the rate limit, the concurrency. An option that configured a part when it was built, such as
        the batch size, keeps its value.
        """

    def pause(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Stop pulling and calling the handler, but keep the queues. May be called before `run`."""

    def resume(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Resume every queue that was paused within this scope."""

    @property
    def paused(self) -> bool:
        """Whether the whole group is paused."""

    def snapshot(self) -> GroupSnapshot:
        """Return the group's state and figures. Cheap, never raises, and may be called before and after `run`."""
