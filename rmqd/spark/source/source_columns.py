"""The columns of the source, and the parsers of its options.

A parser raises ValueError or RmqdError, which names the expected values. No I/O, except that `-1h` needs the clock.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rmqd.errors import ConfigError
from rmqd.runtime.value_kinds import parse_duration_ms
from rmqd.spark.session.spark_access import suggest_name
from rmqd.spark.source.source_offsets import BoundKind, OffsetBound, check_timestamp_ms
from rmqd.spark.values.value_format import BAD_ROW_COLUMN, VALUE_COLUMN, ValueFormat
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import check_topic

# name of a column: (its SQL type, its content for a message)
COLUMN_TYPES: Final = {
    "topic": ("string", "the topic; for a retried message its original topic"),
    "broker": ("string", "the broker that it was read from"),
    "queue_id": ("int", "the queue that it was read from"),
    "queue_offset": ("bigint", "its offset in the queue"),
    "msg_id": ("string", "the producer's unique id, or the offset id if it has none"),
    "offset_msg_id": ("string", "the id made of the storing broker's address and the commit log offset"),
    "keys": ("string", "its keys, separated by spaces"),
    "tags": ("string", "its tag"),
    "body": ("binary", "the body, decompressed"),
    "properties": ("map<string,string>", "system and user properties"),
    "flag": ("int", "the producer's flag"),
    "sys_flag": ("int", "RocketMQ's system flags"),
    "born_timestamp": ("timestamp", "when the producer created it"),
    "store_timestamp": ("timestamp", "when the broker stored it"),
    "born_host": ("string", "the producer's `ip:port`"),
    "store_host": ("string", "the storing broker's `ip:port`"),
    "reconsume_times": ("int", "how often it was sent back"),
    "sharding_key": ("string", "the key that decided the queue"),
    "commit_log_offset": ("bigint", "its offset in the broker's commit log"),
    "store_size": ("int", "its size in the broker's commit log, in bytes"),
    "source_topic": ("string", "the topic that it was read from: for a retried message the group's retry topic"),
    "decode_error": ("string", "with `mode` PERMISSIVE: why a corrupt message has no body"),
}
GROUP_COLUMNS: Final = tuple(name for name in COLUMN_TYPES if name not in ("source_topic", "decode_error"))
"""The columns of a group's query, and of `columns=*`. A pipeline decodes only the columns that it uses."""
LOAD_COLUMNS: Final = ("keys", "body", "topic", "queue_id", "queue_offset", "store_timestamp", "tags")
"""The columns of `load()` by default: few, because Spark does not report which columns a query uses."""
PERMISSIVE_COLUMNS: Final = (*GROUP_COLUMNS, "decode_error")
# the columns that the option `value` adds, in the form of COLUMN_TYPES
VALUE_COLUMNS: Final = {
    VALUE_COLUMN: ("struct", "the decoded body, with the fields of its schema; null if it does not fit"),
    BAD_ROW_COLUMN: ("string", "why the body does not fit its schema; null if it fits"),
}


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How an executor decodes messages to columns, and treats corrupt messages. Picklable."""

    columns: tuple[str, ...]
    used_columns: frozenset[str] | None = None
    """The columns to decode; the other columns are null. None: decode all columns."""
    is_permissive: bool = False
    """Whether a corrupt message becomes a row without a body instead of an error."""
    checks_crc: bool = True
    """Whether a message is corrupt if its body does not match its stored CRC."""
    value_format: ValueFormat | None = None
    """How to decode bodies into the column `value`; None if there is no such column."""

    def uses(self, name: str) -> bool:
        """Return whether this column exists and must be decoded."""
        return name in self.columns and (self.used_columns is None or name in self.used_columns)


def names_of_schema(fields: Sequence[tuple[str, str]], value: ValueFormat | None = None) -> tuple[str, ...]:
    """Return the names of the columns that a user requests with `schema()`. `fields` are pairs of name and SQL type.

    Raises ConfigError with a line for each unknown or repeated column, and for each wrong type.
    """
    problems: list[object] = []
    names = [name for name, _ in fields]
    known = (*COLUMN_TYPES, *(VALUE_COLUMNS if value is not None else ()))
    for name, kind in fields:
        if name not in known:
            problems.append(f"schema: unknown column {name}; {suggest_name(name, known)}")
        elif name == VALUE_COLUMN and value is not None:
            problems += value.problems_with(kind)
        elif name != BAD_ROW_COLUMN and kind != COLUMN_TYPES[name][0]:
            problems.append(
                f"schema: {name} is {kind}; expected {COLUMN_TYPES[name][0]}; cast the column after reading it"
            )
        elif names.count(name) > 1:
            problems.append(f"schema: {name} occurs more than once")
    if problems:
        raise ConfigError(problems)
    return tuple(names)


def schema_ddl(names: Iterable[str], value: ValueFormat | None = None) -> str:
    """Return the schema of these columns as SQL DDL. Raises ConfigError if the type of `value` is unknown."""
    kinds = {name: kind for name, (kind, _) in COLUMN_TYPES.items()}
    if value is not None:
        kinds |= {VALUE_COLUMN: value.sql, BAD_ROW_COLUMN: "string"}
    return ", ".join(f"{name} {kinds[name]}" for name in names)


_DURATION: Final = re.compile(r"([0-9]+)(ms|s|m|h)")
_TIME_FORMS: Final = (
    "expected milliseconds since 1970, ISO 8601 with a zone such as 2026-03-01T10:00:00Z, or an age such as -1h"
)
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a valid duration; expected a number with a unit: 500ms, 30s, 15m or 1h")
    return int(match[1]) * _UNITS[match[2]]


def parse_topics(text: str) -> tuple[str, ...]:
    """Parse topics separated by commas. Duplicates are removed."""
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise ValueError("contains no topic; expected topics separated by commas")
    return tuple(map(check_topic, topics))


def parse_topic_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a valid regular expression: {error}") from error
    return text


def parse_queues(text: str) -> tuple[MessageQueue, ...]:
    """Parse JSON with queue ids by topic and broker. Return the queues, sorted. Raises ValueError."""
    form = 'expected JSON such as {"orders": {"broker-a": [0, 1]}}'
    try:
        queues = [
            MessageQueue(check_topic(topic), broker, queue_id)
            for topic, brokers in json.loads(text).items()
            for broker, queue_ids in brokers.items()
            for queue_id in queue_ids
        ]
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{text!r:.80}: {form}") from None
    if not queues or any(type(queue.queue_id) is not int or queue.queue_id < 0 for queue in queues):
        raise ValueError(f"{text!r:.80}: {form}")
    return tuple(sorted(set(queues)))


def parse_columns(text: str, more: tuple[str, ...] = (), errors: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Parse column names separated by commas. `more` are also valid. `*` means DEFAULT_COLUMNS, `errors` and `more`."""
    if text.strip() == "*":
        return (*GROUP_COLUMNS, *errors, *more)
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in (*COLUMN_TYPES, *more)]
    if unknown or not names:
        raise ValueError(
            f"unknown column {', '.join(unknown) or repr(text)}; expected one of {', '.join((*COLUMN_TYPES, *more))}"
        )
    return names


def parse_time_bound(text: str) -> OffsetBound:
    """Parse a time as a bound: milliseconds since 1970, ISO 8601 with a time zone, or an age such as `-1h`."""
    word = text.strip()
    if word.isdecimal():
        return OffsetBound("timestamp", timestamp_ms=check_timestamp_ms(int(word)))
    try:
        if word.startswith("-"):
            return OffsetBound("timestamp", timestamp_ms=round(time.time() * 1000 - parse_duration_ms(word[1:])))
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(f"{text!r} is not a valid time; {_TIME_FORMS}") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; {_TIME_FORMS}")
    return OffsetBound("timestamp", timestamp_ms=round(moment.timestamp() * 1000))


def bound_word_parser(*words: BoundKind) -> Callable[[str], OffsetBound]:
    """Return a parser that accepts only `words`, such as `earliest`, and returns a bound of this kind."""

    def parse(text: str) -> OffsetBound:
        for word in words:
            if text.strip().lower() == word:
                return OffsetBound(word)
        raise ValueError(f"{text!r} is not valid; expected one of {', '.join(words)}")

    return parse


def parse_missing_timestamp_strategy(text: str) -> bool:
    """Parse `error` or `latest`. Return whether a start time later than all messages of a queue is an error."""
    word = text.strip().lower()
    if word not in ("error", "latest"):
        raise ValueError(f"{text!r} is not valid; expected error or latest")
    return word == "error"


def parse_error_mode(text: str) -> bool:
    """Parse FAILFAST or PERMISSIVE, as in Spark's file sources. Return whether the mode is PERMISSIVE."""
    word = text.strip().upper()
    if word not in ("FAILFAST", "PERMISSIVE"):
        raise ValueError(f"{text!r} is not valid; expected FAILFAST or PERMISSIVE")
    return word == "PERMISSIVE"
