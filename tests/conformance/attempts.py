"""What a consumer was handed: an attempt at a message as a Java listener and as a handler of rmqd see it."""

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
# what Java's client adds to a message's properties; rmqd has it beside them
CLIENTS_PROPERTIES = {
    "CONSUME_START_TIME": "consume_start_timestamp",
    "MIN_OFFSET": "min_offset",
    "MAX_OFFSET": "max_offset",
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One message handed over once; fields by RocketMQ's names. `batch` counts the batches of one consumer from 0."""

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
        """As rmqd shows it."""
        named = {name: getattr(message, name) for name in _MESSAGE_FIELDS}
        added = {name: getattr(message, field) for name, field in CLIENTS_PROPERTIES.items()}
        properties = message.properties | {name: str(value) for name, value in added.items() if value is not None}
        return cls(batch=batch, at_millis=time.time_ns() // 1_000_000, **{**named, "properties": properties})

    @classmethod
    def parse(cls, line: str) -> Attempt:
        """As Java's client showed it, and `AttemptFile.java` wrote it down."""
        values: dict[str, Any] = json.loads(line)
        return cls(**{**values, "body": base64.b64decode(values["body"])})

    def without(self, *names: str) -> dict[str, object]:
        """Every field but the moment, the number of the batch and these; properties without the client's own."""
        one = replace(
            self, properties={n: v for n, v in self.properties.items() if n not in {*CLIENTS_PROPERTIES, *names}}
        )
        values = asdict(one) | {"sys_flag": self.sys_flag & ~COMPRESSED}  # which Java takes out with decompressing
        return {name: value for name, value in values.items() if name not in {"at_millis", "batch", *names}}


_MESSAGE_FIELDS = [field.name for field in fields(Attempt) if field.name not in ("batch", "at_millis")]


class Attempts(list[Attempt]):
    """The attempts of one consumer, in the order in which they began."""

    @classmethod
    def read(cls, path: Path) -> Attempts:
        """What a Java consumer wrote so far."""
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return cls(Attempt.parse(line) for line in lines if line.endswith("\n"))

    @property
    def keys(self) -> list[str | None]:
        """The keys of every attempt."""
        return [attempt.keys for attempt in self]

    def of(self, keys: str) -> Attempts:
        """The attempts at one message."""
        return Attempts(attempt for attempt in self if attempt.keys == keys)

    def batches(self) -> list[list[str | None]]:
        """The keys of each batch."""
        found: dict[int, list[str | None]] = {}
        for attempt in self:
            found.setdefault(attempt.batch, []).append(attempt.keys)
        return list(found.values())

    def by_keys(self) -> dict[str | None, Attempt]:
        """The attempts by their keys, each of which must be there once."""
        assert max(Counter(self.keys).values(), default=0) <= 1, Counter(self.keys)
        return {attempt.keys: attempt for attempt in self}


def differing(
    java: Mapping[Key, Mapping[str, object]], rmqd: Mapping[Key, Mapping[str, object]]
) -> dict[Key, dict[str, tuple[object, object]]]:
    """By message, the fields that differ, Java's value first; a message that only one of them has is all None."""
    return {key: found for key in {*java, *rmqd} if (found := _fields(java.get(key, {}), rmqd.get(key, {})))}


def _fields(one: Mapping[str, object], other: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    return {name: (one.get(name), other.get(name)) for name in {*one, *other} if one.get(name) != other.get(name)}


def steps(attempts: Iterable[Attempt]) -> list[tuple[int, str | None]]:
    """Reconsume times and delay level of each attempt: the way that a message went."""
    return [(attempt.reconsume_times, attempt.properties.get("DELAY")) for attempt in attempts]
