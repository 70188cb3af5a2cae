"""Converts names with a namespace to names without it, and back.

Inside a consumer all names include the namespace (`rmqd.plugins.model_options` adds it). This module removes it from
snapshots; `process.logs` does so in the log, and `wire.messages` for handlers.

The interface to the processes that run groups: this process, or a pool of worker processes.

Builds clients, handlers and consumers for the groups of a process. Tests replace it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, cast

import structlog

from rmqd.client.client_options import ClientOptions
from rmqd.client.remoting.pending import ClientSnapshot
from rmqd.config.model.root_model import DEFAULT_CLUSTER, RootConfig
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.hooks import Hook
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.consumer.services import Consumer
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
from rmqd.daemon.metrics.metric_totals import ProcessSnapshot
from rmqd.handler_api.batch import LoadedHandler
from rmqd.runtime.clock import Clock
from rmqd.wire.topics import without_namespace, wrap_namespace

if TYPE_CHECKING:
    from rmqd.config.model.root_model import GroupConfig, RootConfig
    from rmqd.plugins.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class GroupEdge:
    """The cluster of a group, and the namespace of its names there."""

    cluster: str = DEFAULT_CLUSTER
    namespace: str = ""

    def to_user_names(self, group: GroupSnapshot) -> GroupSnapshot:
        """Return a consumer's snapshot without the namespace, and with the name of its cluster."""
        return replace(without_namespace(group, self.namespace), cluster=self.cluster)

    def to_broker_names(self, scope: PauseScope) -> PauseScope:
        """Return the scope of an operator's pause in the consumer's names."""
        return scope if scope.topic is None else replace(scope, topic=wrap_namespace(scope.topic, self.namespace))


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

    def force_stop(self) -> None:
        """Stop draining and end now."""

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""

    @property
    def longest_drain_seconds(self) -> float:
        """The longest time of a graceful stop."""


log = structlog.get_logger(__name__)


class Client(Protocol):
    """The client that the groups of a process share, as this package uses it."""

    async def run(self) -> None:
        """Serve the groups until `stop`."""

    def stop(self) -> None:
        """Request the stop; `run` returns when the connections are closed."""

    def secure(self, options: ClientOptions) -> None:
        """Use the keys and the TLS settings of these options from now on."""

    async def close(self) -> None:
        """Close the connections of a client whose `run` was not called."""

    def snapshot(self) -> ClientSnapshot:
        """The client's figures now."""


class Engine(Protocol):
    """Builds clients, handlers and consumers, but does not start them."""

    def build_client(self, options: ClientOptions) -> Client:
        """A client for one set of connections."""

    def load_handler(self, group: str, settings: GroupConfig, options: ConsumerOptions) -> LoadedHandler:
        """Return the group's handler. Raises ConfigError if its configuration is invalid."""

    def build_consumer(self, options: ConsumerOptions, handler: LoadedHandler, client: Client) -> Consumer:
        """Return a consumer of one group with a `client` of this engine. Raises ConfigError if a hook is invalid."""

    def build_spark_consumer(self, name: str, options: ConsumerOptions, config: RootConfig) -> Consumer:
        """Return a consumer of the group `name` of `config`. It runs Spark in separate processes."""

    async def check_filters(self, options: ConsumerOptions, client: Client) -> None:
        """Check with the brokers that they accept a group's filters. Raises FilterRefusedError, InvalidNameError."""

    async def close(self) -> None:
        """Close the engine after the last group. Takes some seconds at most."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """The engine of the daemon: asyncio, in this process."""

    clock: Clock
    hooks: tuple[Hook, ...] = ()
    """Hooks that are called in addition to the installed ones."""
    telemetry: Telemetry | None = None

    def build_client(self, options: ClientOptions) -> Client:
        from rmqd.client.instance import ClientInstance

        return ClientInstance(options, clock=self.clock)

    def load_handler(self, group: str, settings: GroupConfig, options: ConsumerOptions) -> LoadedHandler:
        """Load the group's plugin, or worker processes that load it, with `handler.processes`."""
        if settings.handler is not None and settings.handler.processes:
            from rmqd.plugins.worker_processes.process_calls import handler_in_processes

            return handler_in_processes(group, settings, options, self.clock)
        from rmqd.plugins.handler_catalogue import call_limit, load_handler

        handler = load_handler(group, settings)
        if (limit := call_limit(settings)) is not None:
            log.info(
                "handler.calls_limited",
                group=group,
                handler=handler.name,
                concurrency=options.concurrency,
                option=limit.option,
                calls=limit.calls,
            )
        return handler

    def build_consumer(self, options: ConsumerOptions, handler: LoadedHandler, client: Client) -> Consumer:
        from rmqd.client.instance import ClientInstance
        from rmqd.consumer.push_consumer import PushConsumer
        from rmqd.plugins.strategies import hooks_of

        hooks = (*hooks_of(options), *self.hooks)
        if self.telemetry is not None:
            # this hook is first, so that the other hooks are called inside the span
            hooks = (self.telemetry.hook(options), *hooks)
        return PushConsumer(options, handler, cast(ClientInstance, client), self.clock, hooks)

    def build_spark_consumer(self, name: str, options: ConsumerOptions, config: RootConfig) -> Consumer:
        from rmqd.daemon.groups.spark_group import SparkGroup

        return SparkGroup(name, options, config)

    async def check_filters(self, options: ConsumerOptions, client: Client) -> None:
        """Check with the brokers (CHECK_CLIENT_CONFIG, 46) that they accept the group's SQL expressions."""
        from rmqd.client.instance import ClientInstance
        from rmqd.consumer.assembly import subscriptions_of
        from rmqd.consumer.health.consistency import check_filters

        await check_filters(cast(ClientInstance, client), options.group, subscriptions_of(options, 0).values())

    async def close(self) -> None:
        """Send the remaining spans."""
        if self.telemetry is not None:
            await self.telemetry.close()


def local_engine(config: RootConfig, clock: Clock) -> LocalEngine:
    """Return the engine of this process, with OpenTelemetry if the configuration enables it."""
    if not config.tracing.opentelemetry:
        return LocalEngine(clock)
    from rmqd.plugins.telemetry import start_telemetry

    return LocalEngine(clock, telemetry=start_telemetry())
