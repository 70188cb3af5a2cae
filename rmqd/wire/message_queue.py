"""The names of queues and groups: `MessageQueue`, and `Identity`, which includes the cluster.

All stores of rmqd use the text of an Identity to name a record's group, topic or queue.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from rmqd.wire.topics import unwrap_namespace


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker. The order is the one that RocketMQ uses for allocation.

    A tuple, because queues are keys of many dictionaries, and C code hashes and compares tuples.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"

    def without(self, namespace: str) -> MessageQueue:
        """Return the queue, with the topic's name without the namespace, as handlers know it."""
        if not namespace:
            return self
        return MessageQueue(unwrap_namespace(self.topic, namespace), self.broker_name, self.queue_id)


_NONE: Final = "~"  # an empty part
_LONGEST: Final = 200  # MySQL indexes three columns of 255 characters, PostgreSQL 2.7 kB
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Identity:
    """A group on a cluster; `of_topic` and `of_queue` narrow it. Names are without the namespace."""

    cluster: str
    """The id of the cluster; its name, or empty, if the name servers keep no id."""
    namespace: str
    group: str
    topic: str = ""
    lite_topic: str = ""
    broker: str = ""
    queue: str = ""
    replay: str = ""
    """The replay of the group. Each replay has its own records."""

    def of_topic(self, topic: str, lite_topic: str | None = None) -> Identity:
        """Narrow to a topic, and to a lite topic below it."""
        return replace(self, topic=topic, lite_topic=lite_topic or "")

    def of_queue(self, queue: MessageQueue) -> Identity:
        """Narrow to a queue. A lite topic stays."""
        return replace(self, topic=queue.topic, broker=queue.broker_name, queue=str(queue.queue_id))

    def __str__(self) -> str:
        """`cluster/namespace/group/topic/lite topic/broker/queue` without empty parts at its end.

        It has at most 200 characters, and is also a path of folders.
        """
        return _text(self)


@lru_cache(maxsize=1024)
def _text(one: Identity) -> str:
    group = _part(one.group) + (f"@{_part(one.replay)}" if one.replay else "")
    parts = [_part(one.topic), _part(one.lite_topic), _part(one.broker), _part(one.queue)]
    if one.cluster or one.namespace or one.group:  # all three are empty if no group runs the handler
        parts = [_part(one.cluster), _part(one.namespace), group, *parts]
    text = "/".join(parts)
    while text.endswith(f"/{_NONE}"):
        text = text.removesuffix(f"/{_NONE}")
    return text if len(text) <= _LONGEST else f"{_part(one.cluster)}/sha256-{hashlib.sha256(text.encode()).hexdigest()}"


def _part(name: str) -> str:
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], name.encode(errors="surrogatepass")).decode() or _NONE
