"""The broker's topic configurations, its system topics, and the validation of topic and group names.

Java: `TopicConfigManager`, `TopicValidator`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.store.journal import Journal, JournalKind
from rmqd.wire import topics
from rmqd.wire.bodies.config_bodies import TopicConfig
from rmqd.wire.bodies.route_data import PERM_READ, PERM_WRITE

PERM_INHERIT: Final = 1
READ_WRITE: Final = PERM_READ | PERM_WRITE
DELAY_LEVELS: Final = 18
_ONE_QUEUE: Final = (
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    topics.TIMER_TOPIC,
)
_RESERVED: Final = (
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "BenchmarkTest",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "OFFSET_MOVED_EVENT",
    topics.DEFAULT_TOPIC,
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "SELF_TEST_TOPIC",
    topics.SCHEDULE_TOPIC,
    "RMQ_SYS_TRACE_TOPIC",
    topics.TIMER_TOPIC,
    "CHECKPOINT_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
)


def system_topics(settings: BrokerSettings) -> Iterator[TopicConfig]:
    """Yield the topics of every new broker. Tools expect them all, even topics of features that this broker lacks."""
    cluster, broker = settings.brokerClusterName, settings.brokerName
    if settings.autoCreateTopicEnable:
        yield _topic(topics.DEFAULT_TOPIC, settings.defaultTopicQueueNums, READ_WRITE | PERM_INHERIT)
    for topic in _ONE_QUEUE:
        yield _topic(topic, 1)
    yield _topic(topics.SCHEDULE_TOPIC, DELAY_LEVELS)
    yield _topic("BenchmarkTest", 1024)
    yield _topic(cluster, 16, READ_WRITE | PERM_INHERIT)
    yield _topic(broker, 1, READ_WRITE | PERM_INHERIT)
    yield _topic(f"{cluster}_REPLY_TOPIC", 1)
    yield _topic(f"rmq_sys_REVIVE_LOG_{cluster}", 8)
    yield _topic(f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, PERM_INHERIT)


def reserved_topics(settings: BrokerSettings) -> tuple[str, ...]:
    """Return the names in the response to GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
    cluster, broker = settings.brokerClusterName, settings.brokerName
    return (*_RESERVED, cluster, broker, f"{cluster}_REPLY_TOPIC")


def is_reserved(topic: str, settings: BrokerSettings) -> bool:
    """Return whether administrators can neither change nor delete the topic."""
    return topics.is_system_topic(topic) or topic in reserved_topics(settings)


def _topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


UNIT: Final = 1
"""The bit in the sys flag of a topic whose producers are in unit mode."""
UNIT_SUB: Final = 2
"""The bit in the sys flag of a retry topic whose consumers are in unit mode."""
NOT_ALLOWED_SEND_TOPICS: Final = frozenset(
    "SCHEDULE_TOPIC_XXXX RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC TRANS_CHECK_MAX_TIME_TOPIC "
    "SELF_TEST_TOPIC OFFSET_MOVED_EVENT".split()
)
_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_MAX_DERIVED_LENGTH: Final = 255


def topic_name_error(topic: str) -> str:
    """Validate a topic's name. Returns the error text of Java's `TopicValidator`; empty if the name is valid."""
    is_derived = topic.startswith((topics.RETRY_PREFIX, topics.DLQ_PREFIX))
    fault = name_error("topic", topic, len(topic) if is_derived else topics.MAX_TOPIC_LENGTH)
    if is_derived and not fault and len(topic) > _MAX_DERIVED_LENGTH:
        return (
            f"The specified topic is DLQ or Retry topic: {topic}, and it's longer than topic max length: "
            f"{_MAX_DERIVED_LENGTH}"
        )
    return fault


def name_error(kind: str, name: str, most: int) -> str:
    """Validate the name of a topic or group, like `topic_name_error`. `kind` is "topic" or "group"."""
    if not name.strip():
        return f"The specified {kind} is blank."
    if not _ALLOWED.fullmatch(name):
        return f"The specified {kind}: {name}, contains illegal characters, allowing only ^{_ALLOWED.pattern}$"
    return "" if len(name) <= most else f"The specified {kind}: {name}, is longer than {kind} max length: {most}"


class TopicConfigManager:
    """The configurations of topics. `settings` may be replaced while the broker runs."""

    def __init__(self, settings: BrokerSettings, journal: Journal) -> None:
        self.settings = settings
        self.revision = 0
        """Increases with every change of a topic. GET_ALL_TOPIC_CONFIG returns it as the table's data version."""
        self._journal = journal
        self._configs = {config.topic_name: config for config in system_topics(settings)}
        for _, value in journal.items(JournalKind.TOPIC):
            config = TopicConfig.from_json(value.encode())
            self._configs[config.topic_name] = config

    def get(self, topic: str) -> TopicConfig | None:
        """Return a topic's configuration, or None. Each light queue has a default one (`LmqTopicConfigManager`)."""
        config = self._configs.get(topic)
        if config is None and self.settings.enableLmq and topics.is_light_queue(topic):
            return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
        return config

    def get_registered(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic that name servers know, or None. Light queues are not registered."""
        return self._configs.get(topic)

    def all(self) -> dict[str, TopicConfig]:
        """Return all topics, including system topics."""
        return dict(self._configs)

    def put(self, config: TopicConfig) -> TopicConfig:
        self._configs[config.topic_name] = config
        self._journal.put(JournalKind.TOPIC, config.topic_name, config.to_json().decode())
        self.revision += 1
        return config

    def delete(self, topic: str) -> None:
        if self._configs.pop(topic, None) is not None:
            self._journal.delete(JournalKind.TOPIC, topic)
            self.revision += 1

    def create_in_send(
        self, topic: str, default_topic: str, queue_nums: int, topic_sys_flag: int = 0
    ) -> TopicConfig | None:
        """Return a topic. A missing topic is created like `default_topic`; None if the default topic forbids this."""
        known = self._configs.get(topic)
        if known is not None:
            return known
        default = self._configs.get(default_topic)
        if default is None:
            return None
        if default_topic == topics.DEFAULT_TOPIC and not self.settings.autoCreateTopicEnable:
            # as in RocketMQ, the default topic stays changed until the next start, even if the setting becomes true
            self._configs[topics.DEFAULT_TOPIC] = default = replace(default, perm=READ_WRITE)
        if not default.perm & PERM_INHERIT:
            return None
        queues = max(0, min(queue_nums, default.write_queue_nums))
        return self.put(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=default.perm & ~PERM_INHERIT,
                topic_filter_type=default.topic_filter_type,
                topic_sys_flag=topic_sys_flag,
            )
        )

    def create_in_send_back(
        self, topic: str, queue_nums: int, perm: int = READ_WRITE, topic_sys_flag: int = 0, *, order: bool = False
    ) -> TopicConfig:
        """Return a retry or dead letter topic, creating it if missing. If it exists, only `order` is updated."""
        known = self._configs.get(topic)
        if known is not None:
            return known if known.order == order else self.put(replace(known, order=order))
        return self.put(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_nums,
                write_queue_nums=queue_nums,
                perm=perm,
                topic_sys_flag=topic_sys_flag,
                order=order,
            )
        )
