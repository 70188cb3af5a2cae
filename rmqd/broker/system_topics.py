"""The broker's own topics, and reserved names (`TopicConfigManager`, `TopicValidator`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmqd.broker.settings import BrokerSettings
from rmqd.wire.bodies.route import PERM_READ, PERM_WRITE
from rmqd.wire.bodies.settings import TopicConfig
from rmqd.wire.topics import DEFAULT_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, is_system_topic

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
    TIMER_TOPIC,
)
_RESERVED: Final = (
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "BenchmarkTest",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "OFFSET_MOVED_EVENT",
    DEFAULT_TOPIC,
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "SELF_TEST_TOPIC",
    SCHEDULE_TOPIC,
    "RMQ_SYS_TRACE_TOPIC",
    TIMER_TOPIC,
    "CHECKPOINT_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
)


def system_topics(settings: BrokerSettings) -> Iterator[TopicConfig]:
    """Yield the topics of every new broker. Tools also expect topics of features that this broker lacks."""
    cluster, broker = settings.brokerClusterName, settings.brokerName
    if settings.autoCreateTopicEnable:
        yield _topic(DEFAULT_TOPIC, settings.defaultTopicQueueNums, READ_WRITE | PERM_INHERIT)
    for topic in _ONE_QUEUE:
        yield _topic(topic, 1)
    yield _topic(SCHEDULE_TOPIC, DELAY_LEVELS)
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
    return is_system_topic(topic) or topic in reserved_topics(settings)


def _topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
