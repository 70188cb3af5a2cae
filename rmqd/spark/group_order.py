"""What the driver and the executors are told of a group: the configuration, with this one group. Pickles."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.client.options import ClientOptions
from rmqd.config.model.root import GroupConfig, RootConfig
from rmqd.consumer.options import ConsumerOptions
from rmqd.plugins.consumer_options import consumer_options
from rmqd.spark.access import Access
from rmqd.wire.topics import wrap_namespace


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """One group that is to run on Spark."""

    name: str
    config: RootConfig
    """Validated; of its groups only this one matters."""
    import_path: tuple[str, ...] = ()
    """The daemon's sys.path: the driver is started another way, and must find the same plugins."""

    @property
    def settings(self) -> GroupConfig:
        """The group's own settings."""
        return self.config.groups[self.name]

    @property
    def client_options(self) -> ClientOptions:
        """What clients are told about the group's cluster."""
        return self.config.cluster_of(self.name).client_options(self.config.state_dir)

    @property
    def access(self) -> Access:
        """How the group's processes reach RocketMQ."""
        return Access(self.client_options)

    @property
    def options(self) -> ConsumerOptions:
        """What the engine is told, in brokers' words: with the namespace, where there is one."""
        return consumer_options(self.config, self.name)

    @property
    def group(self) -> str:
        """The group's name as brokers know it."""
        return wrap_namespace(self.name, self.client_options.namespace)

    @property
    def topics(self) -> tuple[str, ...]:
        """What it subscribes to, as brokers know it."""
        namespace = self.client_options.namespace
        return tuple(wrap_namespace(topic, namespace) for topic in self.settings.subscriptions)
