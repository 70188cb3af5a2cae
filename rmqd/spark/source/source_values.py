"""Parsers for values of the source's options. They raise ValueError or RmqdError with the expected values.

No I/O, except for reading the clock for `-1h`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from rmqd.config.model.quantities import parse_duration_ms
from rmqd.spark.queue_range import Filter
from rmqd.spark.source.bounds import Bound, Kind, milliseconds_since_1970
from rmqd.spark.source.columns import COLUMNS, DEFAULT_COLUMNS
from rmqd.wire.bodies.heartbeat import EXPRESSION_SQL92, EXPRESSION_TAG
from rmqd.wire.filter import sql_subscription, tag_subscription
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import check_topic

_DURATION: Final = re.compile(r"([0-9]+)(ms|s|m|h)")
_TIME_FORMS: Final = (
    "expected milliseconds since 1970, ISO 8601 with a zone such as 2026-03-01T10:00:00Z, or an age such as -1h"
)
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """Return a duration in seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a valid duration; expected a number with a unit: 500ms, 30s, 15m or 1h")
    return int(match[1]) * _UNITS[match[2]]


def flag(text: str) -> bool:
    """Return a truth value."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(f"{text!r} is not a valid truth value; expected true or false")
    return word == "true"


def topic_names(text: str) -> tuple[str, ...]:
    """Return topics, separated by commas."""
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise ValueError("names no topic; expected topics separated by commas")
    return tuple(map(check_topic, topics))


def topic_pattern(text: str) -> str:
    """Check a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a valid regular expression: {error}") from error
    return text


def queues_by_broker(text: str) -> tuple[MessageQueue, ...]:
    """Return queues, from JSON."""
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


def column_names(text: str, more: tuple[str, ...] = (), errors: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return columns, separated by commas. `more` are columns of other options; `*` stands for all columns."""
    if text.strip() == "*":
        return (*DEFAULT_COLUMNS, *errors, *more)
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in (*COLUMNS, *more)]
    if unknown or not names:
        raise ValueError(
            f"unknown column {', '.join(unknown) or repr(text)}; expected one of {', '.join((*COLUMNS, *more))}"
        )
    return names


def by_tags(text: str) -> Filter:
    """Return a filter by tags."""
    return Filter(EXPRESSION_TAG, tag_subscription("", text, 0).sub_string)


def by_sql(text: str) -> Filter:
    """Return a filter by an SQL92 condition."""
    return Filter(EXPRESSION_SQL92, sql_subscription("", text, 0).sub_string)


def time_ms(text: str) -> Bound:
    """Return a time as a bound: milliseconds since 1970, ISO 8601 with a zone, or an age (`-1h`)."""
    word = text.strip()
    if word.isdecimal():
        return Bound("timestamp", timestamp_ms=milliseconds_since_1970(int(word)))
    try:
        if word.startswith("-"):
            return Bound("timestamp", timestamp_ms=round(time.time() * 1000 - parse_duration_ms(word[1:])))
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(f"{text!r} is not a valid time; {_TIME_FORMS}") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; {_TIME_FORMS}")
    return Bound("timestamp", timestamp_ms=round(moment.timestamp() * 1000))


def words(*words: Kind) -> Callable[[str], Bound]:
    """Return a parser that accepts one of some words, as a bound."""

    def parse(text: str) -> Bound:
        for word in words:
            if text.strip().lower() == word:
                return Bound(word)
        raise ValueError(f"{text!r} is not valid; expected one of {', '.join(words)}")

    return parse


def strategy(text: str) -> bool:
    """Return whether a timestamp without any later message is an error."""
    word = text.strip().lower()
    if word not in ("error", "latest"):
        raise ValueError(f"{text!r} is not valid; expected error or latest")
    return word == "error"


def error_mode(text: str) -> bool:
    """Return whether an error is reported in its row. The words are the same as for Spark's file sources."""
    word = text.strip().upper()
    if word not in ("FAILFAST", "PERMISSIVE"):
        raise ValueError(f"{text!r} is not valid; expected FAILFAST or PERMISSIVE")
    return word == "PERMISSIVE"
