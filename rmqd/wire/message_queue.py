"""The names of queues and groups: `MessageQueue`, and `Identity`, which also names the cluster.

All stores of rmqd use `str(identity)` as the name of the group, topic or queue that a record belongs to.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from rmqd.wire.topics import unwrap_namespace


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker. Queues sort in the order in which RocketMQ allocates them to members.

    The class is a tuple, because queues are keys of many dictionaries, and C code hashes and compares tuples quickly.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"

    def without(self, namespace: str) -> MessageQueue:
        """Return the queue as handlers see it: without the prefix `namespace` in the topic's name."""
        if not namespace:
            return self
        return MessageQueue(unwrap_namespace(self.topic, namespace), self.broker_name, self.queue_id)


_NONE: Final = "~"  # stands for an empty part of an identity's text
_LONGEST: Final = 200  # characters; a MySQL index holds three columns of 255 characters, a PostgreSQL index 2.7 kB
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a group on a cluster, or of one of its topics or queues. Names are without the namespace."""

    cluster: str
    """The id of the cluster. If the name servers store no id, this is the cluster's name, or empty."""
    namespace: str
    group: str
    topic: str = ""
    lite_topic: str = ""
    broker: str = ""
    queue: str = ""
    replay: str = ""
    """The name of a replay or canary of the group, or empty. Each one has separate records."""

    def of_topic(self, topic: str, lite_topic: str | None = None) -> Identity:
        """Return the identity of one of the group's topics, or of a lite topic below that topic."""
        return replace(self, topic=topic, lite_topic=lite_topic or "")

    def of_queue(self, queue: MessageQueue) -> Identity:
        """Return the identity of one of the group's queues. `lite_topic` is kept."""
        return replace(self, topic=queue.topic, broker=queue.broker_name, queue=str(queue.queue_id))

    def __str__(self) -> str:
        """Return `cluster/namespace/group/topic/lite topic/broker/queue` without the empty parts at the end.

        The text is also a valid relative path. A text of more than 200 characters is replaced by its hash.
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
