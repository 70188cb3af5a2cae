"""Attempts at messages, as a Java listener and a handler of rmqd see them."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from rmqd import Message
from rmqd.wire.messages.properties import COMPRESSED

Key = TypeVar("Key")
# the properties that Java's client adds to a message; in rmqd they are attributes
CLIENTS_PROPERTIES = {
    "CONSUME_START_TIME": "consume_start_timestamp",
    "MIN_OFFSET": "min_offset",
    "MAX_OFFSET": "max_offset",
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a message, with RocketMQ's field names. `batch` counts the batches of a consumer from 0."""

    batch: int
    at_millis: int
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    reconsume_times: int
    keys: str | None
    tags: str | None
    msg_id: str
    offset_msg_id: str | None
    body: bytes
    flag: int
    sys_flag: int
    body_crc: int
    store_size: int
    commit_log_offset: int
    born_timestamp: int
    born_host: str
    prepared_transaction_offset: int
    transaction_id: str | None
    properties: dict[str, str]

    @classmethod
    def of(cls, batch: int, message: Message) -> Attempt:
        """Return the attempt at a message in a handler of rmqd."""
        named = {name: getattr(message, name) for name in _MESSAGE_FIELDS}
        added = {name: getattr(message, field) for name, field in CLIENTS_PROPERTIES.items()}
        properties = message.properties | {name: str(value) for name, value in added.items() if value is not None}
        return cls(batch=batch, at_millis=time.time_ns() // 1_000_000, **{**named, "properties": properties})

    @classmethod
    def parse(cls, line: str) -> Attempt:
        """Return the attempt of a Java listener that `AttemptFile.java` wrote."""
        values: dict[str, Any] = json.loads(line)
        return cls(**{**values, "body": base64.b64decode(values["body"])})

    def without(self, *names: str) -> dict[str, object]:
        """Return the fields except `at_millis`, `batch` and `names`, and the properties that no client added."""
        one = replace(
            self, properties={n: v for n, v in self.properties.items() if n not in {*CLIENTS_PROPERTIES, *names}}
        )
        values = asdict(one) | {"sys_flag": self.sys_flag & ~COMPRESSED}  # Java removes the flag when it decompresses
        return {name: value for name, value in values.items() if name not in {"at_millis", "batch", *names}}


_MESSAGE_FIELDS = [field.name for field in fields(Attempt) if field.name not in ("batch", "at_millis")]


class Attempts(list[Attempt]):
    """The attempts of one consumer, in the order of their starts."""

    @classmethod
    def read(cls, path: Path) -> Attempts:
        """Read the attempts that a Java consumer has written so far."""
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return cls(Attempt.parse(line) for line in lines if line.endswith("\n"))

    @property
    def keys(self) -> list[str | None]:
        """The keys of all attempts."""
        return [attempt.keys for attempt in self]

    def of(self, keys: str) -> Attempts:
        """Return the attempts at one message."""
        return Attempts(attempt for attempt in self if attempt.keys == keys)

    def batches(self) -> list[list[str | None]]:
        """Return the keys of each batch."""
        found: dict[int, list[str | None]] = {}
        for attempt in self:
            found.setdefault(attempt.batch, []).append(attempt.keys)
        return list(found.values())

    def by_keys(self) -> dict[str | None, Attempt]:
        """Return the attempts by their keys. Fails if a key has several attempts."""
        assert max(Counter(self.keys).values(), default=0) <= 1, Counter(self.keys)
        return {attempt.keys: attempt for attempt in self}


def differing(
    java: Mapping[Key, Mapping[str, object]], rmqd: Mapping[Key, Mapping[str, object]]
) -> dict[Key, dict[str, tuple[object, object]]]:
    """Return the differing fields of each message, Java's value first. The fields of a missing message are None."""
    return {key: found for key in {*java, *rmqd} if (found := _fields(java.get(key, {}), rmqd.get(key, {})))}


def _fields(one: Mapping[str, object], other: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    return {name: (one.get(name), other.get(name)) for name in {*one, *other} if one.get(name) != other.get(name)}


def steps(attempts: Iterable[Attempt]) -> list[tuple[int, str | None]]:
    """Return reconsume times and delay level of each attempt."""
    return [(attempt.reconsume_times, attempt.properties.get("DELAY")) for attempt in attempts]
