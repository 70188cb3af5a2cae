"""Checks the sink's options and columns before any row is sent, and converts rows to messages.

A pipeline's row names the message that it was read from, by topic, broker, queue and offset. These values are in the
column `_place`, which no sink stores, or in the source's columns. If a sink rejects a row, the error names the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import structlog
from pyarrow import types

from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.errors import ConfigError, InvalidMessageError
from rmqd.handler_api.destinations.upsert_sql import PLACE_COLUMN, PLACE_COLUMNS
from rmqd.spark.session import spark_access as access
from rmqd.spark.session.spark_access import (
    ClientAccess,
    GivenOptions,
    parse_milliseconds_as_seconds,
    parse_positive_int,
    suggest_name,
)
from rmqd.spark.source.source_columns import COLUMN_TYPES
from rmqd.wire.messages.properties import SET_BY_ROCKETMQ, SHARDING_KEY
from rmqd.wire.topics import check_topic, wrap_namespace

SINK_OPTIONS: Final = (*access.ACCESS_OPTIONS, "topic", "sendParallelism", "unavailableToleranceMs")
MAX_IN_FLIGHT: Final = 1024
_FIELDS: Final = {
    "topic": ("topic", check_topic),
    "sendParallelism": ("max_in_flight", lambda text: min(parse_positive_int(text), MAX_IN_FLIGHT)),
    "unavailableToleranceMs": ("tolerance_seconds", parse_milliseconds_as_seconds),
}
"""The field of SinkOptions that an option sets, and the parser of the option's value."""
IGNORED_SPARK_OPTIONS: Final = frozenset(("path", "queryname", "checkpointlocation"))
_TEXT: Final = ("string",)
_NUMBER: Final = ("int", "bigint", "smallint", "tinyint")
# name of a column: (its valid SQL types, its meaning)
SINK_COLUMNS: Final = {
    "body": (("binary", "string"), "the body; text is sent as UTF-8"),
    "topic": (_TEXT, "the row's topic, unless the option topic is set"),
    "tags": (_TEXT, "the tag"),
    "keys": (_TEXT, "the keys, separated by spaces"),
    "properties": (("map<string,string>",), "user properties; properties that RocketMQ sets itself are skipped"),
    "sharding_key": (_TEXT, "rows of one key go to one queue, in their order in the partition"),
    "delay_level": (_NUMBER, "the broker's delay level, 1 to 18; null or 0: none"),
    "deliver_at": (("timestamp",), "the delivery time, for the timer of a 5.x broker"),
    "queue_id": (_NUMBER, "the queue, by its number"),
    "broker": (_TEXT, "the broker of queue_id, if several brokers have the topic"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Destination and concurrency of a sink. `topic` is empty if the column `topic` names the topic of each row."""

    access: ClientAccess
    topic: str = ""
    max_in_flight: int = 64
    tolerance_seconds: float = 60.0
    skips_bad_rows: bool = False
    """Whether a row that cannot be sent is skipped instead of failing its task."""


def parse_sink_options(
    values: Mapping[str, str],
    columns: Mapping[str, str],
    *,
    overwrite: bool,
    default_access: ClientAccess | None = None,
) -> SinkOptions:
    """Parse the options of `save()` or `start()`, and check the `columns`, which are SQL types by name.

    `default_access` is used if no option sets the access. Raises ConfigError with a line for each problem.
    """
    given = GivenOptions(values, SINK_OPTIONS, unknown="the sink has no such option", ignored=IGNORED_SPARK_OPTIONS)
    problems = given.problems
    if default_access is None or any(name in given.values for name in access.ACCESS_OPTIONS):
        default_access = access.read_access(given)
    options = SinkOptions(access=default_access, **given.parse_fields(_FIELDS))
    if overwrite:
        problems.append('mode: a topic cannot be overwritten; use mode("append")')
    problems += column_problems(columns)
    if "topic" not in given.values and "topic" not in columns:
        problems.append("topic: missing; expected an option for all rows, or a column")
    if problems:
        raise ConfigError(problems)
    return options


def column_problems(columns: Mapping[str, str]) -> list[str]:
    """Return the problems of `columns`, which are SQL types by name. Columns that only the source has are ignored."""
    problems = [] if "body" in columns else ["column body: missing; expected a binary or a string"]
    for name, type_name in columns.items():
        if name in SINK_COLUMNS:
            accepted = SINK_COLUMNS[name][0]
            if type_name not in accepted:
                problems.append(f"column {name}: is {type_name}; expected {', '.join(accepted)}")
        elif name not in (*COLUMN_TYPES, PLACE_COLUMN):
            problems.append(f"column {name}: the sink has no such column; {suggest_name(name, tuple(SINK_COLUMNS))}")
    return problems


log = structlog.get_logger(__name__)

QUERY_PROPERTY: Final = "RMQD_QUERY"
BATCH_PROPERTY: Final = "RMQD_BATCH"
PART_PROPERTY: Final = "RMQD_PART"
SEQUENCE_PROPERTY: Final = "RMQD_SEQ"


@dataclass(frozen=True, slots=True)
class OutgoingRow:
    """A row as a message to send. `queue_id` and `broker` choose its queue; if unset, the sharding key does."""

    message: OutgoingMessage
    queue_id: int | None = None
    broker: str = ""
    source_place: Sequence[Any] = ()
    """Topic, broker, queue id and offset of the message that a pipeline read the row from; None for unknown values."""

    @property
    def order_key(self) -> object:
        """The order key: rows with the same key are stored in order. None: the row's order does not matter."""
        message = self.message
        if self.queue_id is not None:
            return message.topic, self.broker, self.queue_id
        return (message.topic, message.sharding_key) if message.sharding_key else None


def outgoing_rows(
    batch: pa.RecordBatch, options: SinkOptions, task_properties: Mapping[str, str], first_row_number: int
) -> Iterator[OutgoingRow]:
    """Yield the rows of a record batch as messages. `first_row_number` counts the task's rows before this batch.

    Each message gets `task_properties`, which identify the task, and the number of its row. If Spark retries the task,
    both are the same, so that readers can drop duplicates. The option `topic` overrides the column `topic`. The
    namespace is added to the topic. Invalid rows are passed to `skip_or_raise`.
    """
    columns = {name: _values(batch.column(name)) for name in batch.schema.names if name in SINK_COLUMNS}
    places = zip(*source_places(batch), strict=True)
    for number, (place, *values) in enumerate(zip(places, *columns.values(), strict=True), first_row_number):
        row, marked = dict(zip(columns, values, strict=True)), {**task_properties, SEQUENCE_PROPERTY: str(number)}
        try:
            yield _row(row, options.topic, marked, options.access.options.namespace, place)
        except ValueError as error:
            skip_or_raise(place, marked, error, options)


def skip_or_raise(
    source_place: Sequence[Any], task_properties: Mapping[str, str], error: Exception, options: SinkOptions
) -> None:
    """Log and skip a row that cannot be sent if `skips_bad_rows` is set; otherwise raise InvalidMessageError."""
    is_known = bool(source_place) and source_place[-1] is not None
    name = (
        source_place_text(source_place)
        if is_known
        else f"row {task_properties[SEQUENCE_PROPERTY]} of partition {task_properties[PART_PROPERTY]}"
    )
    if not options.skips_bad_rows:
        raise InvalidMessageError(f"{name}: {error}") from error
    log.warning("spark.rows_refused", rows=1, first=f"{name}: {error}")


def _row(
    row: Mapping[str, Any], topic: str, marks: Mapping[str, str], namespace: str, place: Sequence[Any]
) -> OutgoingRow:
    body = row["body"]
    if body is None:
        raise ValueError("its body is null")
    topic = topic or row["topic"] or ""
    if not topic:
        raise ValueError("its topic is null, and the option topic is not set")
    delay_level, deliver_at_ms = row.get("delay_level") or 0, row.get("deliver_at")
    if delay_level and deliver_at_ms is not None:
        raise ValueError("both delay_level and deliver_at are set; expected only one of them")
    if delay_level < 0:
        raise ValueError(f"its delay_level is {delay_level}; expected 1 or higher")
    given = dict(row.get("properties") or ())
    properties = {name: value or "" for name, value in given.items() if name not in SET_BY_ROCKETMQ}
    message = OutgoingMessage(
        wrap_namespace(topic, namespace),
        body.encode() if isinstance(body, str) else body,
        tags=row.get("tags") or "",
        keys=row.get("keys") or "",
        delay_level=delay_level,
        deliver_at_ms=deliver_at_ms,
        sharding_key=row.get("sharding_key") or properties.get(SHARDING_KEY, ""),
        properties={**properties, **marks},
    )
    return OutgoingRow(message, row.get("queue_id"), row.get("broker") or "", place)


def _values(column: pa.Array) -> list[Any]:
    """Return a column's values. Timestamps are converted to milliseconds since 1970; Arrow has microseconds."""
    if pa.types.is_timestamp(column.type):
        return [None if value is None else value // 1000 for value in column.cast(pa.int64()).to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def source_places(batch: pa.RecordBatch) -> list[list[Any]]:
    """Return a list for each of `PLACE_COLUMNS`, with a value for each row. Values that the pipeline lacks are None."""
    found = {name: batch.column(name) for name in PLACE_COLUMNS if name in batch.schema.names}
    if PLACE_COLUMN in batch.schema.names:
        place = batch.column(PLACE_COLUMN)
        found = {field.name: place.field(field.name) for field in place.type}
    kinds = (types.is_string, types.is_string, types.is_integer, types.is_integer)
    return [
        found[name].to_pylist() if name in found and is_kind(found[name].type) else [None] * batch.num_rows
        for name, is_kind in zip(PLACE_COLUMNS, kinds, strict=True)
    ]


def source_place_text(place: Sequence[Any]) -> str:
    """Return the text that identifies a rejected row in errors, by the message that the row was read from."""
    topic, broker, queue_id, offset = place
    if offset is None:
        return f"a row of an unknown message, because the pipeline's rows have no column {PLACE_COLUMN}"
    at = f" of {broker}" if broker else ""
    return f"the row of topic {topic}, queue {queue_id}{at}, offset {offset}"
