"""What kind of topic a broker keeps, as the attributes say that mqadmin shows (Java: TopicAttributes, TopicFilterType).

A kind that is not known here may store or count its messages in a way that reads like another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rmqd.wire.bodies.settings import TopicConfig

MESSAGE_TYPE: Final = "message.type"
QUEUE_TYPE: Final = "queue.type"
CLEANUP_POLICY: Final = "cleanup.policy"
MIXED: Final = "MIXED"
LITE: Final = "LITE"
BATCH_QUEUE: Final = "BatchCQ"
MESSAGE_TYPES: Final = ("UNSPECIFIED", MIXED, "TRANSACTION", "PRIORITY", "FIFO", "DELAY", LITE, "NORMAL")
CLEANUP_POLICIES: Final = ("COMPACTION", "DELETE")
"""In the order in which Java's brokers name them."""

_KNOWN: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        MESSAGE_TYPE: frozenset(MESSAGE_TYPES),
        QUEUE_TYPE: frozenset({"SimpleCQ", BATCH_QUEUE, "RocksDBCQ"}),
        CLEANUP_POLICY: frozenset(CLEANUP_POLICIES),
    }
)
_FILTER_TYPES: Final = frozenset({"SINGLE_TAG", "MULTI_TAG"})


def unknown_marks(topic: TopicConfig) -> list[str]:
    """What a topic is marked with that is not known here, each as `name=value`."""
    marks = [(name, topic.attributes[name], known) for name, known in _KNOWN.items() if name in topic.attributes]
    marks.append(("topicFilterType", topic.topic_filter_type, _FILTER_TYPES))
    return [f"{name}={value}" for name, value, known in marks if value not in known]
