"""A group that runs in a worker process, because `rmqd restart` loaded its code again.

Python cannot unload a module: objects, threads and other modules keep references to the old code. So the new code is
imported by a new process, which runs the whole group as `--workers` does: its client, its handler and its calls. The
process is a new member of the group. Every later restart replaces the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.pauses import PauseScope
from rmqd.consumer.services import Consumer
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot, QueueSnapshot
from rmqd.daemon.groups.group_engine import ProcessSnapshot
from rmqd.daemon.groups.spark_group import ChildGroup, blank_snapshot
from rmqd.daemon.groups.supervisor import WorkerShare
from rmqd.daemon.workers.worker_pool import HIDDEN_COMMAND, WorkerProcess, WorkerSpec
from rmqd.errors import ConfigError, RmqdError
from rmqd.runtime.child_process import ChildGoneError, ChildNotUsableError, describe_exit

PATIENCE_SECONDS = 1.0  # less than a parent waits for a worker, because the worker itself may be waiting here


class WorkerEndedError(RmqdError):
    """The worker process of a restarted group has ended, although the group was not stopped."""


class WorkerGroup(ChildGroup[WorkerProcess]):
    def __init__(
        self,
        name: str,
        options: ConsumerOptions,
        config: RootConfig,
        share: WorkerShare,
        ended: Callable[[ProcessSnapshot], None],
    ) -> None:
        """When the process has ended, `ended` is called with its last snapshot, so that the counters are kept."""
        super().__init__(name, options)
        self._spec = WorkerSpec(config.of_group(name), share, {})
        self._report_end = ended
        self._loaded: tuple[WorkerProcess, WorkerSpec] | None = None
        self._importing: WorkerProcess | None = None

    async def load(self) -> None:
        """Import the group's code in a new process, which then waits for `run`. Raises ConfigError."""
        spec = self._spec
        try:
            self._importing = worker = await WorkerProcess.begin("rmqd", HIDDEN_COMMAND)
            if self._stop.is_set():
                worker.kill()
            await worker.ask_to_start("the handler's import", "build", spec)
        except ChildNotUsableError as error:
            stopped = "the group was stopped during its handler's import"
            raise ConfigError([stopped if self._stop.is_set() else error]) from error
        finally:
            self._importing = None
        worker.patience_seconds, worker.log = PATIENCE_SECONDS, self._log
        self._loaded = worker, spec

    async def run(self) -> None:
        """Run the group until `stop` has drained it. Raises ConfigError, WorkerEndedError."""
        if self._loaded is None:
            try:
                await self.load()
            except ConfigError:
                if self._stop.is_set():
                    return
                raise
        assert self._loaded is not None
        worker, spec = self._loaded
        is_wanted = not self._stop.is_set()
        try:
            if is_wanted:
                with suppress(ChildGoneError):  # the exit code, checked below, says more than this error
                    self._child = worker  # set before the request, so that later pauses and stops are sent after it
                    await worker.ask("run", self._pauses.scopes)
                    self._log.info("handler.reloaded", pid=worker.pid)
                    if spec is not self._spec:  # a reload changed the configuration during the import
                        await worker.apply(self._spec.config)
                    await self._follow(worker)
                await asyncio.wait({worker.reading})
        finally:
            if (last := self.process) is not None:
                self._report_end(last)
            self._ended = True
            await worker.dispose()
        if is_wanted and (worker.reading.result() or not self._stop.is_set()):
            how = describe_exit(worker.reading.result())
            raise WorkerEndedError(f"the group's worker process (pid {worker.pid}) {how}")

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """As ChildGroup.stop. An import of the handler, which may hang, is ended."""
        super().stop(shutdown_timeout_seconds=shutdown_timeout_seconds)
        if self._importing is not None:
            self._importing.kill()

    async def apply(self, config: RootConfig) -> None:
        """Apply a configuration. Its changes must be possible without a restart of the group."""
        self._spec = replace(self._spec, config=config.of_group(self._name))
        if self._child is not None:
            await self._child.apply(self._spec.config)

    @property
    def process(self) -> ProcessSnapshot | None:
        """The process's last snapshot without its group; None before the first snapshot and after the process ended."""
        told = None if self._child is None or self._ended else self._child.last_snapshot
        return None if told is None else replace(told.process, groups=())

    def snapshot(self, *, with_queues: bool = True) -> GroupSnapshot:
        """Return the group in the last snapshot of the process; a blank snapshot before the first one."""
        told = None if self._child is None else self._child.last_snapshot
        if told is not None and told.process.groups:
            queues = tuple(self.queue_snapshots()) if with_queues else ()
            return self._shown(replace(told.process.groups[0], queues=queues))
        reason = f"group {self._name} starts in a worker process"
        return self._shown(replace(blank_snapshot(self._options), engine="local", not_ready_reason=reason))

    def queue_snapshots(self) -> Iterator[QueueSnapshot]:
        """Yield the group's queues in the last report of the process."""
        told = None if self._child is None or self._ended else self._child.last_report
        return (queue for _, queue in told.named_queues()) if told is not None else iter(())

    def _switch(self, action: str, scope: PauseScope) -> None:
        if self._child is not None:
            self._child.post(action, (self._name, scope))


async def load(consumers: Iterable[Consumer]) -> None:
    """Load the code of the groups that run in worker processes. Other consumers are ignored.

    Raises ConfigError if a group cannot load its code. The processes of all these groups are then ended.
    """
    groups = [one for one in consumers if isinstance(one, WorkerGroup)]
    results = await asyncio.gather(*(group.load() for group in groups), return_exceptions=True)
    if refusals := [one for one in results if one is not None]:
        for group, result in zip(groups, results, strict=True):
            if result is None:
                group.stop()
                await group.run()
        raise refusals[0]
