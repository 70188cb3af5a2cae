"""The groups of one process: a client for each cluster, and a supervisor for each group."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.consumer.services import Consumer
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot, QueueSnapshot
from rmqd.daemon.groups.group_engine import (
    HostSnapshot,
    LocalEngine,
    ProcessSnapshot,
    ReloadedGroups,
    UnknownGroupError,
    merge_processes,
    settings_of,
)
from rmqd.daemon.groups.group_reload import ClusterClients, ConfigState, groups_with_changed_filters, plan_changes
from rmqd.daemon.groups.supervisor import Backoff, GroupSupervisor, LoopMonitor, WorkerShare
from rmqd.errors import ConfigError, FilterRefusedError, RmqdError
from rmqd.plugins.model_options import consumer_options
from rmqd.runtime.clock import Clock
from rmqd.runtime.event_loop import in_slices
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.runtime.logs.log_writer import count_dropped_lines
from rmqd.wire.topics import unwrap_namespace, without_namespace

with import_lazily():
    from rmqd.client import instance
    from rmqd.daemon.workers import worker_group

READINESS_POLL_SECONDS = 0.02
GROUPS_PER_SLICE = 20  # groups whose snapshots are made at once, which blocks the event loop for some milliseconds


class LocalGroups:
    """A GroupHost that runs groups in this process. The constructor only builds them, and raises ConfigError."""

    def __init__(
        self,
        config: RootConfig,
        engine: LocalEngine,
        clock: Clock,
        monitor: LoopMonitor,
        share: WorkerShare | None = None,
        *,
        imports_again: bool = False,
    ) -> None:
        """`imports_again`: load started and rebuilt groups in worker processes, because their code may have changed."""
        self._engine = engine
        self._clock = clock
        self._monitor = monitor
        self._share = share or WorkerShare()
        self._state = ConfigState.of(config)
        self._clients = ClusterClients(self._state, lambda options: engine.build_client(self._share.of_client(options)))
        self._imports_again = imports_again
        self._in_workers: set[str] = set()  # groups that need a worker process: this process imported their old code
        self._groups = self._build_groups(config, config.groups, self._clients.current)
        self._past: list[ProcessSnapshot] = []  # counters of worker processes that ended when their groups restarted
        self._running: dict[str, asyncio.Task[None]] = {}
        self._loading: list[Consumer] = []
        self._stop = asyncio.Event()
        self._changing = asyncio.Lock()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run until `stop` has drained all groups. If a client fails, raise its error, because groups need a client."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._clients.run_in(tasks)
                for name in self._groups:
                    self._launch(name)
                await self._stop.wait()
                async with self._changing:
                    await self._drain(list(self._groups))
                    await self._clients.end()
        finally:
            await self._engine.close()

    async def started(self, patience_seconds: float) -> None:
        deadline, left = self._clock.monotonic() + patience_seconds, list(self._groups.values())
        while self._clock.monotonic() < deadline and not self.stopping:
            while left and left[-1].snapshot().ready:  # a group that was ready once is not checked again
                del left[-1]
            if not left:
                return
            await asyncio.sleep(READINESS_POLL_SECONDS)

    async def view(self, *, with_queues: bool = True) -> HostSnapshot:
        await asyncio.gather(*(one.refresh(with_queues=with_queues) for one in self._worker_groups().values()))
        return HostSnapshot((await self.snapshot_in_slices() if with_queues else self.snapshot(),))

    async def snapshot_in_slices(self) -> ProcessSnapshot:
        """Return the snapshot with all queues. They are read in slices, so queues may be from different moments."""
        groups, queues = list(self._groups.values()), defaultdict[GroupSupervisor, list[QueueSnapshot]](list)
        async for found in in_slices((group, queue) for group in groups for queue in group.queue_snapshots()):
            for group, queue in found:
                queues[group].append(queue)
        return self._snapshot(
            [one.snapshot(queues[one]) async for some in in_slices(groups, GROUPS_PER_SLICE) for one in some]
        )

    def snapshot(self, *, with_queues: bool = False) -> ProcessSnapshot:
        """Return the current state of all groups and clients, including the counters of replaced clients."""
        groups = self._groups.values()
        return self._snapshot(group.snapshot(group.queue_snapshots() if with_queues else ()) for group in groups)

    def _snapshot(self, groups: Iterable[GroupSnapshot]) -> ProcessSnapshot:
        own = ProcessSnapshot(
            worker=self._share.worker,
            pid=os.getpid(),
            client=self._clients.snapshot(),
            groups=tuple(groups),
            loop_delay=self._monitor.snapshot(),
            log_dropped=count_dropped_lines(),
        )
        others = [process for one in self._worker_groups().values() if (process := one.process) is not None]
        return merge_processes([own, *others], self._past) if others or self._past else own

    async def pause(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        self._supervisor(group, scope).pause(scope)

    async def resume(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        self._supervisor(group, scope).resume(scope)

    async def restart(self, group: str) -> None:
        supervisor = self._supervisor(group)
        async with self._changing:
            if self.stopping:
                raise ConfigError(["the daemon is stopping and cannot restart a group"])
            following = self._build_consumer(group, self._state.config, self._clients.current, in_worker=True)
            await self._load([following])
            self._in_workers.add(group)
            await supervisor.restart(following)

    async def apply(self, config: RootConfig) -> ReloadedGroups:
        """Build new and changed groups, drain changed and removed groups, then start the new and changed groups."""
        async with self._changing:
            if self.stopping:
                raise ConfigError(["the daemon is stopping and cannot apply a new configuration"])
            state = ConfigState.of(config)
            changes = plan_changes(self._state, state)
            following = self._clients.prepare(self._state, state)
            ours = [name for name in (*changes.unchanged, *changes.updated) if name in self._groups]
            in_workers = [name for name in ours if name in self._worker_groups()]
            live = [name for name in ours if name in changes.updated and name not in in_workers]
            live = [name for name in live if self._groups[name].failure is None]
            to_build = [name for name in config.groups if name not in (*changes.unchanged, *in_workers, *live)]
            try:
                next_in_workers = set(to_build) if self._imports_again else self._in_workers
                groups = self._build_groups(config, to_build, following.clients, next_in_workers)
                filtered = groups_with_changed_filters(self._state.config, config, changes)
                await self._check_filters(config, filtered, following.clients)
                if next_in_workers:
                    await self._load([group.consumer for group in groups.values()])
            except ConfigError:
                await following.roll_back()
                raise
            self._state = state
            self._in_workers |= next_in_workers
            await asyncio.gather(
                self._drain([*to_build, *changes.stopped]),
                *(self._groups[name].change(self._options(config, name)) for name in live),
                *(self._worker_groups()[name].apply(config) for name in in_workers),
            )
            await self._clients.switch_to(following)
            for name in changes.stopped:
                self._groups.pop(name, None)
                self._in_workers.discard(name)
            for name in in_workers:
                self._groups[name].shutdown_timeout_seconds = config.groups[name].shutdown_timeout_seconds
            for name, group in groups.items():
                self._take_over(name, group, config.groups[name])
            return changes

    async def check_filters(self, names: Iterable[str]) -> None:
        """Check the filters of some groups with the brokers. Raises ConfigError if a broker refuses a filter."""
        await self._check_filters(self._state.config, names, self._clients.current)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def stop(self) -> None:
        self._stop.set()
        for group in self._groups.values():
            group.stop()
        for consumer in self._loading:
            consumer.stop()

    def force_stop(self) -> None:
        self._stop.set()
        for group in self._groups.values():
            group.force_stop()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def longest_drain_seconds(self) -> float:
        return max((group.shutdown_timeout_seconds for group in self._groups.values()), default=0.0)

    def _supervisor(self, group: str, scope: PauseScope = WHOLE_GROUP) -> GroupSupervisor:
        settings_of(self._state.config, group, scope)
        if group not in self._groups:  # a reload has not started the group yet
            raise UnknownGroupError(group, list(self._groups))
        return self._groups[group]

    async def _load(self, consumers: list[Consumer]) -> None:
        """Load the code of groups that run in worker processes. Raises ConfigError, also if `stop` is called."""
        if self.stopping:  # since the reload began: nothing would end an import that hangs
            raise ConfigError(["the daemon is stopping"])
        self._loading = consumers
        try:
            await worker_group.load(consumers)
        finally:
            self._loading = []

    def _build_groups(
        self,
        config: RootConfig,
        names: Iterable[str],
        clients: Mapping[str, instance.ClientInstance],
        in_workers: Collection[str] = (),
    ) -> dict[str, GroupSupervisor]:
        groups, problems = {}, []
        for name in names:
            settings = config.groups[name]
            if not self._share.runs(settings):
                continue
            try:
                groups[name] = self._supervised(name, config, clients, in_worker=name in in_workers)
            except ConfigError as error:  # an invalid hook concerns all groups, and is reported once
                problems += [problem for problem in error.problems if problem not in problems]
            except RmqdError as error:  # an invalid name or expression, which only the engine detects
                problems.append(_problem(config, name, error))
        if problems:
            raise ConfigError(problems)
        return groups

    def _supervised(
        self, name: str, config: RootConfig, clients: Mapping[str, instance.ClientInstance], *, in_worker: bool
    ) -> GroupSupervisor:
        first = [self._build_consumer(name, config, clients, in_worker=in_worker)]

        def build() -> Consumer:
            # reloads may have replaced the configuration and the clients since the first consumer was built
            now = self._state.config, self._clients.current
            return first.pop() if first else self._build_consumer(name, *now, in_worker=name in self._in_workers)

        seconds, cluster = config.groups[name].shutdown_timeout_seconds, config.cluster_name(name)
        namespace = config.cluster_of(name).client.namespace
        return GroupSupervisor(name, build, seconds, self._clock, Backoff(), cluster=cluster, namespace=namespace)

    def _build_consumer(
        self, name: str, config: RootConfig, clients: Mapping[str, instance.ClientInstance], *, in_worker: bool
    ) -> Consumer:
        """Build a consumer of a group with a new handler, because a handler serves only one consumer.

        `in_worker`: run the consumer in a worker process, which imports the group's code again.
        """
        settings, options = config.groups[name], self._options(config, name)
        if settings.engine == "spark":  # the Spark driver is a new process anyway
            return self._engine.build_spark_consumer(name, options, config)
        if in_worker:
            return worker_group.WorkerGroup(name, options, config, self._share, self._keep_counters)
        handler = self._engine.load_handler(name, settings, options)
        return self._engine.build_consumer(options, handler, clients[config.cluster_name(name)])

    def _options(self, config: RootConfig, name: str) -> ConsumerOptions:
        return self._share.of_group(config.groups[name], consumer_options(config, name))

    def _worker_groups(self) -> dict[str, worker_group.WorkerGroup]:
        if not self._in_workers:
            return {}
        found = {name: group.consumer for name, group in self._groups.items()}
        return {name: one for name, one in found.items() if isinstance(one, worker_group.WorkerGroup)}

    def _keep_counters(self, ended: ProcessSnapshot) -> None:
        self._past = [merge_processes([replace(ended, groups=())], self._past)]

    async def _check_filters(
        self, config: RootConfig, names: Iterable[str], clients: Mapping[str, instance.ClientInstance]
    ) -> None:
        async def check(name: str) -> list[object]:
            try:
                await self._engine.check_filters(consumer_options(config, name), clients[config.cluster_name(name)])
            except RmqdError as error:
                return [_problem(config, name, error)]
            return []

        found = await asyncio.gather(*(check(name) for name in names if self._share.runs(config.groups[name])))
        if problems := [problem for part in found for problem in part]:
            raise ConfigError(problems)

    def _take_over(self, name: str, group: GroupSupervisor, settings: GroupConfig) -> None:
        former = self._groups.get(name)
        if former is not None:
            is_whole = settings.engine == "spark"
            pauses = [scope for scope in former.pauses.scopes if not is_whole or scope == WHOLE_GROUP]
            group.adopt_counters(former.snapshot(), pauses)
        self._groups[name] = group
        if not self.stopping:
            self._launch(name)

    def _launch(self, name: str) -> None:
        assert self._tasks is not None
        self._running[name] = self._tasks.create_task(self._groups[name].run(), name=f"supervisor of {name}")

    async def _drain(self, names: list[str]) -> None:
        tasks: list[asyncio.Task[None]] = []
        for name in names:
            task = self._running.pop(name, None)
            if task is not None:
                self._groups[name].stop()
                tasks.append(task)
        if tasks:
            await asyncio.wait(tasks)


def _problem(config: RootConfig, group: str, error: RmqdError) -> object:
    """Convert an error of a group to a problem of the configuration. A refused filter is reported with its line."""
    namespace = config.cluster_of(group).client.namespace
    text = without_namespace(str(error), namespace)
    if isinstance(error, FilterRefusedError):
        topic = unwrap_namespace(error.topic, namespace)
        return config.groups[group].problem(group, ("subscriptions", topic), text)
    return f"groups.{group}: {text}"
