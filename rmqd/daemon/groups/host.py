"""What runs the groups, as the rest of the daemon sees it: this process itself, or a pool of worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rmqd.config.model.root import RootConfig
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.daemon.metrics.totals import ProcessSnapshot


class UnknownGroupError(Exception):
    """No group of that name is configured here."""

    def __init__(self, group: str, known: list[str]) -> None:
        super().__init__(f"there is no group {group} here; known: {', '.join(known) or 'none'}")
        self.group = group


class WholeGroupOnlyError(Exception):
    """Some queues of a group are to be paused, and the group can only be paused as a whole."""

    def __init__(self, group: str, scope: PauseScope) -> None:
        super().__init__(
            f"group {group} is on Spark, where a micro-batch takes all queues: {scope} alone cannot be paused; "
            "pause the whole group"
        )


def check_scope(config: RootConfig, group: str, scope: PauseScope) -> None:
    """Raise WholeGroupOnlyError where a group of `config` cannot be paused in this part alone."""
    settings = config.groups.get(group)
    if settings is not None and settings.engine == "spark" and scope != WHOLE_GROUP:
        raise WholeGroupOnlyError(group, scope)


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """The groups that a reload changed, by what it did to them."""

    unchanged: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    """Groups that took over the new values while they ran."""
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
    """Whether a worker answers, by its number; empty without workers."""
    worker_restarts: int = 0
    missing: tuple[str, ...] = ()
    """Why the view is incomplete, such as a worker that is being restarted."""


class GroupHost(Protocol):
    """Runs the configured groups until it is stopped."""

    async def run(self) -> None:
        """Run until `stop` and the drain after it. Raises only for failures that no restart of a group can cure."""

    async def started(self, patience_seconds: float) -> None:
        """Wait until every group is ready, at most `patience_seconds`."""

    async def view(self) -> HostView:
        """All groups of all processes, now."""

    async def pause(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        """Pause a group, or some queues of it, everywhere. Raises UnknownGroupError, WholeGroupOnlyError."""

    async def resume(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        """Resume a group, or some queues of it, everywhere. Raises UnknownGroupError, WholeGroupOnlyError."""

    async def apply(self, config: RootConfig) -> GroupChanges:
        """Apply a configuration. Groups that it does not change go on untouched.

        Raises ConfigError, with nothing changed, if a part of the new configuration cannot be built.
        """

    def stop(self) -> None:
        """Drain all groups in parallel, each up to its shutdown timeout; `run` then ends."""

    def hurry(self) -> None:
        """Cut the drain short."""

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""

    @property
    def longest_drain_seconds(self) -> float:
        """How long a graceful end may take."""
