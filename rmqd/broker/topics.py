"""The topics of the broker: made on request, at a send, and for a group's retries (`TopicConfigManager.java`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rmqd.broker.journal import Journal, Kind
from rmqd.broker.settings import BrokerSettings
from rmqd.wire.route import PERM_READ, PERM_WRITE
from rmqd.wire.settings import TopicConfig
from rmqd.wire.topics import DEFAULT_TOPIC, SCHEDULE_TOPIC

PERM_INHERIT: Final = 1
READ_WRITE: Final = PERM_READ | PERM_WRITE
DELAY_LEVELS: Final = 18


class TopicConfigManager:
    """Topic configurations by name."""

    def __init__(self, settings: BrokerSettings, journal: Journal) -> None:
        self.revision = 0
        """Raised by every change: name servers tell it as the broker's data version."""
        self._journal = journal
        self._configs: dict[str, TopicConfig] = {}
        self._add_system_topics(settings)
        for _, value in journal.items(Kind.TOPIC):
            config = TopicConfig.from_json(value.encode())
            self._configs[config.topic_name] = config

    def get(self, topic: str) -> TopicConfig | None:
        """A topic's configuration."""
        return self._configs.get(topic)

    def all(self) -> dict[str, TopicConfig]:
        """Every topic, system topics included."""
        return dict(self._configs)

    def put(self, config: TopicConfig) -> TopicConfig:
        """Make a topic, or change it."""
        self._configs[config.topic_name] = config
        self._journal.put(Kind.TOPIC, config.topic_name, config.to_json().decode())
        self.revision += 1
        return config

    def delete(self, topic: str) -> None:
        """Forget a topic."""
        if self._configs.pop(topic, None) is not None:
            self._journal.delete(Kind.TOPIC, topic)
            self.revision += 1

    def create_in_send(self, topic: str, default_topic: str, queue_nums: int) -> TopicConfig | None:
        """The topic, made after the default topic's pattern where it does not exist; None where that forbids it."""
        known = self._configs.get(topic)
        if known is not None:
            return known
        default = self._configs.get(default_topic)
        if default is None or not default.perm & PERM_INHERIT:
            return None
        queues = max(0, min(queue_nums, default.write_queue_nums))
        made = replace(
            default,
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=default.perm & ~PERM_INHERIT,
        )
        return self.put(made)

    def create_in_send_back(self, topic: str, queue_nums: int, perm: int = READ_WRITE) -> TopicConfig:
        """A retry or dead-letter topic, made where it does not exist."""
        known = self._configs.get(topic)
        if known is not None:
            return known
        return self.put(
            TopicConfig(topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=perm)
        )

    def _add_system_topics(self, settings: BrokerSettings) -> None:
        queues = settings.defaultTopicQueueNums
        self._add(DEFAULT_TOPIC, queues, READ_WRITE | (PERM_INHERIT if settings.autoCreateTopicEnable else 0))
        self._add(SCHEDULE_TOPIC, DELAY_LEVELS, READ_WRITE)

    def _add(self, topic: str, queues: int, perm: int) -> None:
        self._configs[topic] = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
