"""A producer for tests without a JVM and without rmqd's code: one connection, a message or a batch at a time."""

from __future__ import annotations

import itertools
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.rocketmq import rpc
from tests.rocketmq.errors import ClusterError


class Producer:
    """Sends to one broker. Raises OSError or ClusterError if a message was not stored."""

    def __init__(
        self,
        broker: str,
        topic: str,
        queues: int = 8,
        *,
        timeout_seconds: float = 5,
        credentials: rpc.Credentials | None = None,
        accepted: tuple[int, ...] = rpc.STORED,
    ) -> None:
        """`accepted` are the response codes that count as stored."""
        self._accepted = accepted
        self._credentials = credentials
        self._link = rpc.connect(broker, credentials, timeout_seconds)
        self._topic = topic
        self._queues = itertools.cycle(range(queues))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def send(
        self,
        body: bytes = b"x",
        *,
        key: str = "",
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
    ) -> tuple[int, int]:
        """Store one message, in the next queue unless `queue` is given. Return its queue and its offset."""
        fields = self._fields(next(self._queues) if queue is None else queue)
        fields["properties"] = _properties({"KEYS": key, "TAGS": tags, **(properties or {})})
        return self._store(fields, body)

    def send_batch(
        self,
        keys: Sequence[str],
        body: bytes = b"x",
        *,
        queue: int | None = None,
        tags: Sequence[str] = (),
        batch_tag: str = "",
        properties: Sequence[Mapping[str, str]] = (),
    ) -> tuple[int, int]:
        """Store a message per key in one queue, all or none. Return the queue, and the offset of the first message.

        `tags` and `properties` belong to the members, in the order of the keys.

        As with Java's producers, the batch has its own id. Brokers store it as one record if the topic is BatchCQ.
        """
        fields = self._fields(next(self._queues) if queue is None else queue) | {"batch": "true"}
        fields["properties"] = _properties({"UNIQ_KEY": uuid.uuid4().hex.upper(), "TAGS": batch_tag})
        members = itertools.zip_longest(keys, tags[: len(keys)], properties[: len(keys)])
        return self._store(fields, b"".join(_batched(key, body, tag or "", more or {}) for key, tag, more in members))

    def _fields(self, queue: int) -> dict[str, object]:
        return {
            "producerGroup": "rmqd_tests",
            "topic": self._topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 8,
            "queueId": queue,
            "sysFlag": 0,
            "bornTimestamp": int(time.time() * 1000),
            "flag": 0,
            "properties": "",
            "reconsumeTimes": 0,
            "unitMode": "false",
            "batch": "false",
            "maxReconsumeTimes": 0,
        }

    def _store(self, fields: dict[str, object], body: bytes) -> tuple[int, int]:
        answer = rpc.exchange(
            self._link, rpc.SEND_MESSAGE, fields, body=body, credentials=self._credentials, accepted=self._accepted
        )
        if "queueOffset" not in answer.fields:
            raise ClusterError(f"the broker stored nothing: {answer}")
        return int(answer.fields["queueId"]), int(answer.fields["queueOffset"])


def _properties(values: Mapping[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items() if value)


def _batched(key: str, body: bytes, tag: str, more: Mapping[str, str]) -> bytes:
    """One message inside a batch: size, magic, CRC (the broker makes both itself), flag, body, properties."""
    properties = _properties({"KEYS": key, "TAGS": tag, **more}).encode()
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties
