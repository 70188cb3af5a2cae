"""The interface GroupHost, and code for all implementations: settings, snapshots of all processes, LocalEngine.

The snapshots of several worker processes, and of ended consumers and processes, are merged by the rules that their
fields declare (`runtime.figures`).

Inside a consumer, names of topics and groups include the namespace, which `rmqd.plugins.model_options` adds.
`GroupSupervisor` removes the namespace from snapshots, `runtime.logs` from the log, and `wire.messages` from messages.
"""

from __future__ import annotations

import operator
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol, Self

import structlog

from rmqd.client.client_options import ClientOptions
from rmqd.client.remoting.pending import ClientSnapshot
from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.hooks import Hook
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.consumer.services import Consumer
from rmqd.consumer.stats.stats_snapshot import QUEUE_STATES, GroupSnapshot, QueueSnapshot
from rmqd.handler_api.batch import LoadedHandler
from rmqd.runtime.clock import Clock
from rmqd.runtime.event_loop import in_slices
from rmqd.runtime.figures import add_counters, add_each, counter, figure, gauge, histogram, if_known, merge_two
from rmqd.runtime.histogram import HistogramSnapshot
from rmqd.runtime.lazy_imports import import_lazily

with import_lazily():
    from rmqd.client import instance
    from rmqd.consumer import assembly, push_consumer
    from rmqd.consumer.health import consistency
    from rmqd.daemon.groups import spark_group
    from rmqd.plugins import handler_catalogue, strategies, telemetry
    from rmqd.plugins.worker_processes import process_calls


class UnknownGroupError(Exception):
    """The daemon's configuration has no group with this name."""

    def __init__(self, group: str, known: list[str]) -> None:
        super().__init__(f"unknown group {group}; expected one of {', '.join(known) or 'none'}")


class WholeGroupOnlyError(Exception):
    """Some queues of a group should be paused, but the group can only be paused in larger parts, or as a whole."""

    def __init__(self, group: str, scope: PauseScope, why: str, instead: str) -> None:
        super().__init__(f"group {group} {why}: {scope} alone cannot be paused; pause {instead}")


def settings_of(config: RootConfig, group: str, scope: PauseScope = WHOLE_GROUP) -> GroupConfig:
    """Return the settings of a group. Raises UnknownGroupError, or WholeGroupOnlyError if `scope` cannot be paused."""
    settings = config.groups.get(group)
    if settings is None:
        raise UnknownGroupError(group, list(config.groups))
    if settings.engine == "spark" and scope != WHOLE_GROUP:
        raise WholeGroupOnlyError(group, scope, "is on Spark, whose micro-batches read all queues", "the whole group")
    return settings


def refuse_pause_of_queue(config: RootConfig, group: str, scope: PauseScope) -> None:
    """Raise WholeGroupOnlyError if an operator may not pause `scope`, because a pop returns messages of any queue."""
    if scope.queue is not None and settings_of(config, group).consume_mode == "pop":
        why, instead = "pops, and brokers choose the queues", "the topic, the broker or the whole group"
        raise WholeGroupOnlyError(group, scope, why, instead)


@dataclass(frozen=True, slots=True)
class ReloadedGroups:
    """The groups that a reload changed, by kind of change."""

    unchanged: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    """Groups that applied the new values while running."""
    restarted: tuple[str, ...] = ()
    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """The groups of one process, and their client. `worker` is the worker's number; None without `--workers`."""

    worker: int | None
    pid: int
    client: ClientSnapshot
    groups: tuple[GroupSnapshot, ...]
    loop_delay: HistogramSnapshot = histogram(
        "rmqd_event_loop_lag_seconds", "How late the event loop ran a timer, measured once a second."
    )
    log_dropped: int = counter(
        "rmqd_log_dropped_total",
        "Log lines that were dropped, because the log is not read or the rate limit was exceeded.",
    )


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's snapshot in the form that is sent to the parent. The queues are pickled in slices, so that thousands
    of queues block neither the worker's nor the parent's event loop.
    """

    process: ProcessSnapshot
    queues: tuple[bytes, ...] = ()
    """Each item is a pickled list of pairs: a group's name, and a queue."""

    @classmethod
    async def of(cls, process: ProcessSnapshot) -> Self:
        """Return the report of a snapshot that has queues."""
        named = ((group.name, queue) for group in process.groups for queue in group.queues)
        queues = [pickle.dumps(found) async for found in in_slices(named)]
        return cls(replace(process, groups=tuple(replace(group, queues=()) for group in process.groups)), tuple(queues))

    def named_queues(self) -> Iterator[tuple[str, QueueSnapshot]]:
        """Yield each queue with its group's name: (group, queue)."""
        for packed in self.queues:
            yield from pickle.loads(packed)

    async def unpacked(self) -> ProcessSnapshot:
        """Return the snapshot with its queues."""
        queues = defaultdict(list)
        async for found in in_slices(self.named_queues()):
            for name, queue in found:
                queues[name].append(queue)
        groups = (replace(group, queues=tuple(queues[group.name])) for group in self.process.groups)
        return replace(self.process, groups=tuple(groups))


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """The snapshots of all processes, and of ended processes (`past`). `workers` is None without `--workers`."""

    processes: tuple[ProcessSnapshot, ...] = figure(operator.add)
    past: tuple[ProcessSnapshot, ...] = figure(operator.add, default=())
    workers: dict[str, int] | None = gauge(
        "rmqd_workers",
        "Worker processes by state: running, restarting. Absent without --workers.",
        if_known(add_each),
        by="state",
        default=None,
    )
    answering: Mapping[int, bool] = gauge(
        "rmqd_worker_up",
        "1 if a worker responds; 0 if not, and its other values are old.",
        operator.or_,
        by="worker",
        default_factory=dict,
    )
    """Whether a worker responds, by its number; empty without workers."""
    worker_restarts: int = counter(
        "rmqd_worker_restarts_total",
        "Workers replaced because they had died.",
        read=lambda view: None if view.workers is None else view.worker_restarts,
    )
    missing: tuple[str, ...] = figure(operator.add, default=())
    """The reasons why this snapshot is incomplete, such as a worker that is restarting."""


# If a daemon has several members of a group, the group's state is the first of these states that a member has.
_STATE_PRECEDENCE = ("failed", "starting", "draining", "running", "stopped")


def merge_processes(living: Iterable[ProcessSnapshot], past: Iterable[ProcessSnapshot] = ()) -> ProcessSnapshot:
    """Merge one or more processes into one snapshot, with the counters of ended processes (`past`)."""
    processes, ended = list(living), list(past)
    groups: dict[str, GroupSnapshot] = {}
    for group in (group for process in processes for group in process.groups):
        groups[group.name] = _merge_members(groups[group.name], group) if group.name in groups else group
    for group in (group for process in ended for group in process.groups if group.name in groups):
        groups[group.name] = add_ended_counters(groups[group.name], group)
    client = reduce(merge_two, (process.client for process in processes))
    return replace(
        reduce(merge_two, [*processes, *ended]),
        client=reduce(add_counters, (process.client for process in ended), client),
        groups=tuple(_with_each_queue_once(group) for group in groups.values())
        if len(processes) > 1
        else tuple(groups.values()),
    )


def add_ended_counters(group: GroupSnapshot, past: GroupSnapshot | None) -> GroupSnapshot:
    """Return the group plus the counters of an ended consumer, unless they belong to another engine."""
    return group if past is None or past.engine != group.engine else add_counters(group, past)


def _merge_members(one: GroupSnapshot, other: GroupSnapshot) -> GroupSnapshot:
    base = min(one, other, key=lambda member: _STATE_PRECEDENCE.index(member.state))
    return merge_two(one, other, base, counters=one.engine == other.engine)


def _with_each_queue_once(group: GroupSnapshot) -> GroupSnapshot:
    """Return the group with each queue once. Two workers may both show a queue while it moves between them, and all
    workers pop the same queues. A popped queue gets the state of the worker whose state is first in QUEUE_STATES.
    """
    latest: dict[tuple[str, bool, str, int], QueueSnapshot] = {}
    assigned = dict(group.assigned)
    for queue in group.queues:
        key = (queue.topic, queue.is_retry, queue.broker, queue.queue)
        before = latest.get(key)
        if before is not None and not queue.is_retry and queue.topic in assigned:
            assigned[queue.topic] -= 1
        if before is not None and before.popped and queue.popped:
            latest[key] = merge_two(before, queue, min(before, queue, key=lambda one: QUEUE_STATES.index(one.state)))
        elif before is None or queue.since > before.since:
            latest[key] = queue
    return replace(group, queues=tuple(latest.values()), assigned=assigned)


class GroupHost(Protocol):
    """Runs the configured groups until it is stopped."""

    async def run(self) -> None:
        """Run until `stop` has drained all groups. Raises failures that restarting a group cannot repair."""

    async def started(self, patience_seconds: float) -> None:
        """Wait until every group is ready, at most `patience_seconds`."""

    async def view(self, *, with_queues: bool = True) -> HostSnapshot:
        """Return the current state of all groups in all processes. Queues are read in slices, and the event loop runs
        between two slices. So all values of one queue are from the same moment, but different queues may not be.
        """

    async def pause(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        """Pause a group, or some of its queues, in all processes. Raises UnknownGroupError, WholeGroupOnlyError."""

    async def resume(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        """Resume a group, or some of its queues, in all processes. Raises UnknownGroupError, WholeGroupOnlyError."""

    async def restart(self, group: str) -> None:
        """Load a group's code in new processes, drain only this group, and continue it in the new processes.

        Raises UnknownGroupError. Raises ConfigError if the code cannot be loaded; the old code then continues.
        """

    async def apply(self, config: RootConfig) -> ReloadedGroups:
        """Apply a configuration. Unchanged groups continue undisturbed.

        Raises ConfigError, and changes nothing, if a part of the new configuration cannot be built.
        """

    def stop(self) -> None:
        """Drain all groups in parallel, each for at most its shutdown timeout. Then `run` returns."""

    def force_stop(self) -> None:
        """Abandon running handlers, and end now."""

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""

    @property
    def longest_drain_seconds(self) -> float:
        """The longest shutdown timeout of all groups."""


log = structlog.get_logger(__name__)


class LocalEngine:
    """Builds clients, handlers and consumers, but does not start them. Tests replace it."""

    def __init__(self, clock: Clock, hooks: tuple[Hook, ...] = (), spans: telemetry.Telemetry | None = None) -> None:
        """`hooks` are called in addition to the installed hooks."""
        self._clock = clock
        self._hooks = hooks
        self._spans = spans

    def build_client(self, options: ClientOptions) -> instance.ClientInstance:
        """Return a client for the groups of one cluster."""
        return instance.ClientInstance(options, clock=self._clock)

    def load_handler(self, group: str, settings: GroupConfig, options: ConsumerOptions) -> LoadedHandler:
        """Load the group's handler and its canary; if `handler.processes` is set, in worker processes.

        Raises ConfigError.
        """
        assert settings.handler is not None
        in_processes = settings.handler.processes > 0
        if in_processes:
            handler = process_calls.handler_in_processes(group, settings, options, self._clock)
        else:
            handler = handler_catalogue.load_handler(group, settings)
        if settings.handler.canary is not None:
            if in_processes:
                canary = process_calls.handler_in_processes(group, settings.promoted, options, self._clock)
            else:
                canary = handler_catalogue.load_canary(group, settings, handler)
            handler = handler_catalogue.with_canary(handler, canary, options, self._clock)
        if (limit := handler_catalogue.call_limit(settings)) is not None:
            log.info(
                "handler.calls_limited",
                group=group,
                handler=handler.name,
                concurrency=options.concurrency,
                option=limit.option,
                calls=limit.calls,
            )
        return handler

    def build_consumer(
        self, options: ConsumerOptions, handler: LoadedHandler, client: instance.ClientInstance
    ) -> Consumer:
        """Return a consumer of one group. Raises ConfigError if a hook is invalid."""
        hooks = (*strategies.hooks_of(options), *self._hooks)
        if self._spans is not None:
            # the tracing hook is first, so that other hooks are called inside the span
            hooks = (self._spans.hook(options), *hooks)
        return push_consumer.PushConsumer(options, handler, client, hooks)

    def build_spark_consumer(self, name: str, options: ConsumerOptions, config: RootConfig) -> Consumer:
        """Return a consumer of the group `name` of `config`. It runs Spark in separate processes."""
        return spark_group.SparkGroup(name, options, config)

    async def check_filters(self, options: ConsumerOptions, client: instance.ClientInstance) -> None:
        """Check with the brokers (CHECK_CLIENT_CONFIG, 46) that they accept the group's SQL expressions.

        Raises FilterRefusedError, InvalidNameError.
        """
        subscriptions = assembly.subscription_data_of(options, 0).values()
        await consistency.check_filters(client, options.group, subscriptions)

    async def close(self) -> None:
        """Send the remaining tracing spans. This takes a few seconds at most."""
        if self._spans is not None:
            await self._spans.close()


def local_engine(config: RootConfig, clock: Clock) -> LocalEngine:
    """Return the engine of this process. It uses OpenTelemetry if the configuration enables tracing."""
    return LocalEngine(clock, spans=telemetry.start_telemetry() if config.tracing.opentelemetry else None)
