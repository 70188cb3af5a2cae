"""The configuration of one group, sent to driver and executors. Picklable."""

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
    """One group to run on Spark."""

    name: str
    config: RootConfig
    """Validated. Only this group of it is used."""
    import_path: tuple[str, ...] = ()
    """The daemon's sys.path, because the separately started driver must find the same plugins."""

    @property
    def settings(self) -> GroupConfig:
        """The group's settings."""
        return self.config.groups[self.name]

    @property
    def client_options(self) -> ClientOptions:
        """The client options for the group's cluster."""
        return self.config.cluster_of(self.name).client_options(self.config.state_dir)

    @property
    def access(self) -> Access:
        """The access of the group's processes to RocketMQ."""
        return Access(self.client_options)

    @property
    def options(self) -> ConsumerOptions:
        """The options of the engine, with topics and group as brokers know them: with the namespace, if any."""
        return consumer_options(self.config, self.name)

    @property
    def group(self) -> str:
        """The group's name as brokers know it."""
        return wrap_namespace(self.name, self.client_options.namespace)

    @property
    def topics(self) -> tuple[str, ...]:
        """The subscribed topics as brokers know them."""
        namespace = self.client_options.namespace
        return tuple(wrap_namespace(topic, namespace) for topic in self.settings.subscriptions)
