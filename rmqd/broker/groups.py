"""The consumer groups that the broker knows (`SubscriptionGroupManager.java`)."""

from __future__ import annotations

from rmqd.broker.journal import Journal, Kind
from rmqd.broker.settings import BrokerSettings
from rmqd.errors import InvalidNameError
from rmqd.wire.settings import SubscriptionGroupConfig
from rmqd.wire.topics import check_group, is_system_group


class SubscriptionGroupManager:
    """Group configurations by name. `settings` is asked anew each time: it may change while the broker runs."""

    def __init__(self, settings: BrokerSettings, journal: Journal) -> None:
        self.settings = settings
        self._journal = journal
        self._configs: dict[str, SubscriptionGroupConfig] = {}
        for _, value in journal.items(Kind.GROUP):
            config = SubscriptionGroupConfig.from_json(value.encode())
            self._configs[config.group_name] = config

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """A group's configuration, made where it is missing; None where that is switched off or the name illegal."""
        known = self._configs.get(group)
        if known is not None:
            return known
        if not self.settings.autoCreateSubscriptionGroup and not is_system_group(group):
            return None
        try:
            check_group(group)
        except InvalidNameError:
            return None
        return self.put(SubscriptionGroupConfig(group_name=group))

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """A group's configuration, if it exists."""
        return self._configs.get(group)

    def all(self) -> dict[str, SubscriptionGroupConfig]:
        """Every group."""
        return dict(self._configs)

    def put(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Make a group, or change it."""
        self._configs[config.group_name] = config
        self._journal.put(Kind.GROUP, config.group_name, config.to_json().decode())
        return config

    def delete(self, group: str) -> None:
        """Forget a group."""
        if self._configs.pop(group, None) is not None:
            self._journal.delete(Kind.GROUP, group)
