"""Converts rows to messages: one message for each row of an Arrow batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.errors import InvalidMessageError
from rmqd.spark.sink.row_place import place_text, places_of
from rmqd.spark.sink.sink_options import SINK_COLUMNS, SinkOptions
from rmqd.wire.messages.properties import SET_BY_ROCKETMQ, SHARDING_KEY
from rmqd.wire.topics import wrap_namespace

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

log = structlog.get_logger(__name__)

QUERY: Final = "RMQD_QUERY"
BATCH: Final = "RMQD_BATCH"
PART: Final = "RMQD_PART"
SEQUENCE: Final = "RMQD_SEQ"


@dataclass(frozen=True, slots=True)
class Origin:
    """The task that sends rows: the same if Spark retries the task, so that readers can drop duplicates."""

    query: str
    batch: str
    part: int


@dataclass(frozen=True, slots=True)
class OutgoingRow:
    """A message. Its queue is chosen by `queue_id` and `broker` if set, else by its sharding key."""

    message: OutgoingMessage
    queue_id: int | None = None
    broker: str = ""
    place: Sequence[Any] = ()
    """The message from which the row was read."""

    @property
    def lane(self) -> object:
        """Rows with the same lane are stored in order; None if no order is requested."""
        message = self.message
        if self.queue_id is not None:
            return message.topic, self.broker, self.queue_id
        return (message.topic, message.sharding_key) if message.sharding_key else None


def rows_of(batch: pa.RecordBatch, options: SinkOptions, origin: Origin, first: int) -> Iterator[OutgoingRow]:
    """Yield the rows of a batch. `first` is the number of its first row in the task.

    The option `topic` overrides the column. Both topics are without the namespace, which is added. A row that cannot be
    sent is refused.
    """
    columns = {name: _values(batch.column(name)) for name in batch.schema.names if name in SINK_COLUMNS}
    marks = {QUERY: origin.query, BATCH: origin.batch, PART: str(origin.part)}
    places = zip(*places_of(batch), strict=True)
    for number, (place, *values) in enumerate(zip(places, *columns.values(), strict=True), first):
        row, marked = dict(zip(columns, values, strict=True)), {**marks, SEQUENCE: str(number)}
        try:
            yield _row(row, options.topic, marked, options.access.options.namespace, place)
        except ValueError as error:
            refuse(place, marked, error, options)


def refuse(place: Sequence[Any], marks: Mapping[str, str], error: Exception, options: SinkOptions) -> None:
    """Skip a row and log it, or raise InvalidMessageError, depending on the options."""
    is_known = bool(place) and place[-1] is not None
    name = place_text(place) if is_known else f"row {marks[SEQUENCE]} of partition {marks[PART]}"
    if not options.leaves_out:
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
    """Return a column's values. Timestamps, which Arrow has in microseconds, are in milliseconds since 1970."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return [None if value is None else value // 1000 for value in column.cast(pa.int64()).to_pylist()]
    values: list[Any] = column.to_pylist()
    return values
