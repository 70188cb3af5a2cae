"""Builds clients, handlers and consumers for the groups of a process. Tests replace it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import structlog

from rmqd.client.options import ClientOptions
from rmqd.client.remoting.snapshot import ClientSnapshot
from rmqd.clock import Clock
from rmqd.consumer.contract import Consumer
from rmqd.consumer.hooks import Hook
from rmqd.consumer.options import ConsumerOptions
from rmqd.loaded_handler import LoadedHandler

if TYPE_CHECKING:
    from rmqd.config.model.root import GroupConfig, RootConfig
    from rmqd.process.telemetry import Telemetry


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
            from rmqd.handler_processes.calls import handler_in_processes

            return handler_in_processes(group, settings, options, self.clock)
        from rmqd.plugins.handlers import call_limit, load_handler

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
        from rmqd.plugins.hooks import hooks_of

        hooks = (*hooks_of(options), *self.hooks)
        if self.telemetry is not None:
            hooks = (self.telemetry.hook(options), *hooks)  # first, so that other hooks are called inside the span
        return PushConsumer(options, handler, cast(ClientInstance, client), self.clock, hooks)

    def build_spark_consumer(self, name: str, options: ConsumerOptions, config: RootConfig) -> Consumer:
        from rmqd.daemon.groups.spark_group import SparkGroup

        return SparkGroup(name, options, config)

    async def check_filters(self, options: ConsumerOptions, client: Client) -> None:
        """Check with the brokers (CHECK_CLIENT_CONFIG, 46) that they accept the group's SQL expressions."""
        from rmqd.client.instance import ClientInstance
        from rmqd.consumer.assembly import subscriptions_of
        from rmqd.consumer.health.filter_check import check_filters

        await check_filters(cast(ClientInstance, client), options.group, subscriptions_of(options, 0).values())

    async def close(self) -> None:
        """Send the remaining spans."""
        if self.telemetry is not None:
            await self.telemetry.close()


def local_engine(config: RootConfig, clock: Clock) -> LocalEngine:
    """Return the engine of this process, with OpenTelemetry if the configuration enables it."""
    if not config.tracing.opentelemetry:
        return LocalEngine(clock)
    from rmqd.process.telemetry import start_telemetry

    return LocalEngine(clock, telemetry=start_telemetry())
