"""What the driver and the executors are told of a group: the configuration, with this one group. Pickles."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.daemon.config import GroupConfig, RootConfig
from rmqd.spark.access import Access


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
    def access(self) -> Access:
        """How the group's processes reach RocketMQ."""
        return Access(self.config.client_options())

    @property
    def nameserver(self) -> str:
        """As the source's option has it: addresses separated by `;`."""
        return ";".join(self.config.nameserver)
