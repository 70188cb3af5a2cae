"""The interface to the processes that run groups: this process, or a pool of worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rmqd.config.model.root import RootConfig
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.daemon.metrics.totals import ProcessSnapshot


class UnknownGroupError(Exception):
    """The group is not configured here."""

    def __init__(self, group: str, known: list[str]) -> None:
        super().__init__(f"unknown group {group}; expected one of {', '.join(known) or 'none'}")
        self.group = group


class WholeGroupOnlyError(Exception):
    """Some queues of a group should be paused, but the group can only be paused as a whole."""

    def __init__(self, group: str, scope: PauseScope) -> None:
        super().__init__(
            f"group {group} is on Spark, whose micro-batches read all queues: {scope} alone cannot be paused; "
            "pause the whole group"
        )


def check_scope(config: RootConfig, group: str, scope: PauseScope) -> None:
    """Raise WholeGroupOnlyError if a group of `config` cannot be paused in this scope."""
    settings = config.groups.get(group)
    if settings is not None and settings.engine == "spark" and scope != WHOLE_GROUP:
        raise WholeGroupOnlyError(group, scope)


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """The groups that a reload changed, by kind of change."""

    unchanged: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    """Groups that applied the new values while running."""
    restarted: tuple[str, ...] = ()
    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostView:
    """All processes at one moment. `workers` counts worker processes by state; None without workers."""

    processes: tuple[ProcessSnapshot, ...]
    past: tuple[ProcessSnapshot, ...] = ()
    workers: dict[str, int] | None = None
    answering: Mapping[int, bool] = field(default_factory=dict)
    """Whether a worker responds, by its number; empty without workers."""
    worker_restarts: int = 0
    missing: tuple[str, ...] = ()
    """The reasons why the view is incomplete, such as a worker that is restarting."""


class GroupHost(Protocol):
    """Runs the configured groups until it is stopped."""

    async def run(self) -> None:
        """Run until `stop` and its drain. Raises only failures that restarting a group cannot repair."""

    async def started(self, patience_seconds: float) -> None:
        """Wait until every group is ready, at most `patience_seconds`."""

    async def view(self) -> HostView:
        """Return the current state of all groups of all processes."""

    async def pause(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        """Pause a group, or some queues of it, everywhere. Raises UnknownGroupError, WholeGroupOnlyError."""

    async def resume(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        """Resume a group, or some queues of it, everywhere. Raises UnknownGroupError, WholeGroupOnlyError."""

    async def apply(self, config: RootConfig) -> GroupChanges:
        """Apply a configuration. Unchanged groups continue undisturbed.

        Raises ConfigError, and changes nothing, if a part of the new configuration cannot be built.
        """

    def stop(self) -> None:
        """Drain all groups in parallel, each up to its shutdown timeout; `run` then ends."""

    def hurry(self) -> None:
        """Stop draining and end now."""

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""

    @property
    def longest_drain_seconds(self) -> float:
        """The longest time of a graceful stop."""
