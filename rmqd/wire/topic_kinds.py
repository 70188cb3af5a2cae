"""The kind of a topic, by the attributes that mqadmin shows (Java: TopicAttributes, TopicFilterType).

A broker may store or count the messages of an unknown kind in a way that looks like a known kind.
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
"""In the order in which Java's brokers list them."""

_KNOWN: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        MESSAGE_TYPE: frozenset(MESSAGE_TYPES),
        QUEUE_TYPE: frozenset({"SimpleCQ", BATCH_QUEUE, "RocksDBCQ"}),
        CLEANUP_POLICY: frozenset(CLEANUP_POLICIES),
    }
)
_FILTER_TYPES: Final = frozenset({"SINGLE_TAG", "MULTI_TAG"})


def unknown_marks(topic: TopicConfig) -> list[str]:
    """Return a topic's attributes with unknown values, each as `name=value`."""
    marks = [(name, topic.attributes[name], known) for name, known in _KNOWN.items() if name in topic.attributes]
    marks.append(("topicFilterType", topic.topic_filter_type, _FILTER_TYPES))
    return [f"{name}={value}" for name, value, known in marks if value not in known]
