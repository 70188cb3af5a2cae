"""Groups that run in a child process: `ChildGroup`, and `SparkGroup`, whose child is the driver of a Spark query.

The driver, its JVM and Spark's Python workers form a separate process group, so that all of them end with the driver,
even if it crashes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import structlog

from rmqd.config.model.root_model import RootConfig
from rmqd.config.model.spark_model import AVAILABLE_NOW
from rmqd.consumer.assembly import create_topic_stats
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.pauses import WHOLE_GROUP, Pauses, PauseScope
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot, QueueSnapshot
from rmqd.errors import RmqdError
from rmqd.runtime.child_process import ChildGoneError, ChildNotUsableError, ChildProcess, describe_exit
from rmqd.runtime.plain_text import duration

log = structlog.get_logger(__name__)

ENGINE: Final = "spark"
DRIVER_MODULE: Final = "rmqd.spark.engine.driver"
SNAPSHOT_POLL_SECONDS: Final = 1.0
# Java's garbage collection, or a busy machine, may delay the driver's responses for a while.
SILENT_SECONDS: Final = 30.0


class SparkDriverError(RmqdError):
    """The Spark driver process of a group has ended, or could not be started."""


@dataclass(frozen=True, slots=True)
class DriverSpec:
    """The specification of a Spark driver. `config` has only one group, which the driver runs."""

    config: RootConfig
    pauses: tuple[PauseScope, ...]


class SparkDriverProcess(ChildProcess[GroupSnapshot]):
    name = "Spark driver"
    snapshot_type = GroupSnapshot
    log = log
    """The log, bound to the group's name."""

    def report_silence(self, is_silent: bool) -> None:
        if is_silent:
            self.log.error("spark.driver_silent", pid=self.pid, seconds=self.patience_seconds)


Child = TypeVar("Child", bound=ChildProcess[Any])


class ChildGroup(Generic[Child]):
    """A group that runs in a child process. Its snapshot is requested every second, and when `refresh` is called."""

    def __init__(self, name: str, options: ConsumerOptions, silent_seconds: float = SILENT_SECONDS) -> None:
        """`silent_seconds`: how long the child may be silent before the group is not ready."""
        self._options = options
        self._name = name
        self._silent_seconds = silent_seconds
        self._log = structlog.get_logger(type(self).__module__).bind(group=name)
        self._pauses = Pauses()
        self._child: Child | None = None
        self._stop = asyncio.Event()
        self._ended = False

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """Request that the child waits for running batches, at most the shutdown timeout, and commits their offsets."""
        self._stop.set()
        if self._child is not None:
            self._child.post("stop", shutdown_timeout_seconds)

    def force_stop(self) -> None:
        """Request that the child aborts running batches. They are handled again after the next start."""
        self._stop.set()
        if self._child is not None:
            self._child.post("force_stop")

    def pause(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Request that the child starts no more batches. Running batches are finished."""
        self._pauses.pause(scope)
        self._switch("pause", scope)

    def resume(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Request that the child starts batches again."""
        self._pauses.resume(scope)
        self._switch("resume", scope)

    async def change(self, options: ConsumerOptions) -> None:
        """Raise RmqdError. A reload does not call this method: it restarts the group, or calls `WorkerGroup.apply`."""
        raise RmqdError(f"group {self._name} runs in another process; to change its options, restart the group")

    async def refresh(self, *, with_queues: bool = True) -> None:
        """Request a new snapshot from the child, if the child runs, and wait for it."""
        if self._child is not None and not self._ended:
            with suppress(ChildGoneError):
                await self._child.refresh(with_queues)

    def _switch(self, action: str, scope: PauseScope) -> None:
        if self._child is not None:
            self._child.post(action, scope)

    async def _follow(self, child: Child) -> None:
        """Request snapshots until the child ends."""
        while not child.reading.done():
            await self.refresh()
            await asyncio.wait({child.reading}, timeout=SNAPSHOT_POLL_SECONDS)

    def _shown(self, group: GroupSnapshot) -> GroupSnapshot:
        """Return the child's snapshot `group`, updated with pauses, and with an end or a long silence of the child."""
        group = replace(group, paused=self._pauses.is_whole_group_paused, pauses=self._pauses.scopes)
        if self._ended:
            return replace(group, state="stopped" if group.state != "failed" else "failed", queues=(), assigned={})
        child = self._child
        if child is not None and child.is_silent and time.monotonic() - child.asked_at >= self._silent_seconds:
            silence = f"the {child.name} (pid {child.pid}) has not responded for {duration(self._silent_seconds)}"
            return replace(group, ready=False, not_ready_reason=silence)
        return group


class SparkGroup(ChildGroup[SparkDriverProcess]):
    def __init__(
        self,
        name: str,
        options: ConsumerOptions,
        config: RootConfig,
        start: Callable[[], Awaitable[SparkDriverProcess]] = lambda: SparkDriverProcess.begin(DRIVER_MODULE),
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        super().__init__(name, options, silent_seconds)
        self._config = config.of_group(name)
        self._start = start
        spark = config.groups[name].spark
        self._ends_when_all_is_handled = spark is not None and spark.trigger == AVAILABLE_NOW

    async def run(self) -> None:
        """Run the group until `stop` has drained it.

        A group with `trigger: available_now` waits for `stop` after its last batch. Raises ConfigError, or
        SparkDriverError with the driver's reason.
        """
        try:
            driver = self._child = await self._start()
        except ChildNotUsableError as error:
            raise SparkDriverError(f"cannot start Spark: {error}") from error
        driver.patience_seconds, driver.log = self._silent_seconds, self._log
        is_wanted = not self._stop.is_set()
        try:
            if is_wanted:
                await self._serve(driver)
        finally:
            self._ended = True
            await driver.dispose()
        if is_wanted:
            self._check_end(driver, driver.reading.result())
        await self._stop.wait()

    def snapshot(self, *, with_queues: bool = True) -> GroupSnapshot:
        """Return the last snapshot that the driver sent; a blank snapshot before the first one."""
        told = None if self._child is None else self._child.last_snapshot
        group = self._shown(told or blank_snapshot(self._options))
        return group if with_queues else replace(group, queues=())

    def queue_snapshots(self) -> Iterator[QueueSnapshot]:
        """Yield the queues of the last snapshot."""
        return iter(self.snapshot().queues)

    async def _serve(self, driver: SparkDriverProcess) -> None:
        """Send the driver its specification, then request snapshots until it ends."""
        with suppress(ChildGoneError):  # `_check_end` reports the exit code, which says more than this error
            await driver.ask("build", DriverSpec(self._config, self._pauses.scopes))
            self._log.info("spark.driver_started", pid=driver.pid)
            if self._stop.is_set():  # `stop` was called before the driver was ready
                driver.post("stop")
            await self._follow(driver)
        await asyncio.wait({driver.reading})

    def _check_end(self, driver: SparkDriverProcess, exit_code: int) -> None:
        told = driver.last_snapshot
        if told is not None and told.failure is not None:
            raise SparkDriverError(told.failure)
        if exit_code:
            how = describe_exit(exit_code)
            raise SparkDriverError(f"the Spark driver (pid {driver.pid}) {how}, without giving a reason")
        if not self._stop.is_set() and not self._ends_when_all_is_handled:
            raise SparkDriverError(f"the Spark driver (pid {driver.pid}) ended without being asked to stop")


def blank_snapshot(options: ConsumerOptions) -> GroupSnapshot:
    """Return the snapshot of a group before the first snapshot of its child process, for example a Spark driver."""
    return GroupSnapshot(
        name=options.group,
        engine=ENGINE,
        message_model=options.message_model,
        state="starting",
        ready=False,
        not_ready_reason=f"group {options.group} waits for Spark, which takes some 10 s to start",
        topics=tuple(topic for stats in create_topic_stats(options).values() for topic in stats.snapshots()),
        assigned=dict.fromkeys(options.subscriptions, 0),
    )
