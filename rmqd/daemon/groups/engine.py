"""How the parts of the local engine are built: the seam between this room and the ones below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from rmqd.client.options import ClientOptions
from rmqd.client.remoting.snapshot import ClientSnapshot
from rmqd.clock import Clock
from rmqd.consumer.contract import Consumer
from rmqd.consumer.hooks import Hook
from rmqd.consumer.options import ConsumerOptions
from rmqd.handler import LoadedHandler

if TYPE_CHECKING:
    from rmqd.config.model.root import GroupConfig, RootConfig
    from rmqd.process.telemetry import Telemetry


class Client(Protocol):
    """What all groups of a process share, as the process sees it."""

    async def run(self) -> None:
        """Serve the groups until `stop`."""

    def stop(self) -> None:
        """Have `run` end."""

    def secure(self, options: ClientOptions) -> None:
        """Go by the keys and the TLS settings of these options from now on."""

    async def close(self) -> None:
        """Close the connections of a client that was asked something and is not to run."""

    def snapshot(self) -> ClientSnapshot:
        """What the client tells about itself."""


class Engine(Protocol):
    """Builds clients, handlers and consumers. Nothing that it builds runs yet."""

    def build_client(self, options: ClientOptions) -> Client:
        """A client for one set of connections."""

    def load_handler(self, group: str, settings: GroupConfig) -> LoadedHandler:
        """The group's handler. Raises ConfigError for what the configuration has wrong."""

    def build_consumer(self, options: ConsumerOptions, handler: LoadedHandler, client: Client) -> Consumer:
        """A consumer of one group, for a `client` that this engine built. Raises ConfigError for installed hooks."""

    def build_spark_consumer(self, name: str, options: ConsumerOptions, config: RootConfig) -> Consumer:
        """A consumer of the group that `config` has under `name`, which runs on Spark, in processes of its own."""

    async def check_filters(self, options: ConsumerOptions, client: Client) -> None:
        """Ask the brokers whether they filter by a group's expressions. Raises FilterRefusedError, InvalidNameError."""

    async def close(self) -> None:
        """The last group has ended, and nothing more will be built. Takes seconds at most."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """The engine of this program: asyncio, in this process."""

    clock: Clock
    hooks: tuple[Hook, ...] = ()
    """Called beside the installed ones."""
    telemetry: Telemetry | None = None

    def build_client(self, options: ClientOptions) -> Client:
        """A ClientInstance."""
        from rmqd.client.instance import ClientInstance

        return ClientInstance(options, clock=self.clock)

    def load_handler(self, group: str, settings: GroupConfig) -> LoadedHandler:
        """The plugin that the group names."""
        from rmqd.plugins.handlers import load_handler

        return load_handler(group, settings)

    def build_consumer(self, options: ConsumerOptions, handler: LoadedHandler, client: Client) -> Consumer:
        """A PushConsumer."""
        from rmqd.client.instance import ClientInstance
        from rmqd.consumer.push_consumer import PushConsumer
        from rmqd.plugins.hooks import load_hooks

        hooks = (*load_hooks(), *self.hooks)
        if self.telemetry is not None:
            hooks = (self.telemetry.hook(options), *hooks)  # first, so that the others are called within the span
        return PushConsumer(options, handler, cast(ClientInstance, client), self.clock, hooks)

    def build_spark_consumer(self, name: str, options: ConsumerOptions, config: RootConfig) -> Consumer:
        """A SparkGroup."""
        from rmqd.daemon.groups.spark_group import SparkGroup

        return SparkGroup(name, options, config)

    async def check_filters(self, options: ConsumerOptions, client: Client) -> None:
        """By CHECK_CLIENT_CONFIG."""
        from rmqd.client.instance import ClientInstance
        from rmqd.consumer.assembly import subscriptions_of
        from rmqd.consumer.health.filter_check import check_filters

        await check_filters(cast(ClientInstance, client), options.group, subscriptions_of(options, 0).values())

    async def close(self) -> None:
        """Send the spans that are left."""
        if self.telemetry is not None:
            await self.telemetry.close()


def local_engine(config: RootConfig, clock: Clock) -> LocalEngine:
    """The engine of this process, with the tracing that is configured."""
    if not config.tracing.opentelemetry:
        return LocalEngine(clock)
    from rmqd.process.telemetry import start_telemetry

    return LocalEngine(clock, telemetry=start_telemetry())
