"""The pipeline `cdc`: each message's changes as rows, decoded on executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from rmqd.handler_api.destinations.upsert_sql import KEYS_METADATA, ORDER_KIND, PLACE_COLUMN
from rmqd_handlers.cdc.change_formats import BadChangeError, ChangeMaker, RowChange, canal_changes, debezium_changes
from rmqd_handlers.cdc.columns import (
    PER_SECOND,
    BadValueError,
    ChangeColumn,
    ValueConverter,
    base_64,
    latin_1,
    parse_columns,
)
from rmqd_handlers.option_kinds import HandlerOptions, option
from rmqd_handlers.pipelines import BAD

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession

DELETED: Final = "_deleted"
ORDER: Final = "_order"
READ_COLUMNS: Final = ("topic", "queue_id", "queue_offset", "msg_id", "body")
BROKER: Final = "broker"
PLACE_DDL: Final = f"{PLACE_COLUMN} struct<topic: string, {BROKER}: string, queue_id: int, queue_offset: bigint>"
BAD_DDL: Final = f"topic string, queue_id int, queue_offset bigint, msg_id string, body binary, {BAD} string"
_MAX_CHARACTERS: Final = 300  # limit for a reason
_BIGINT: Final = 1 << 63
_CHANGES: Final = {"canal": canal_changes, "debezium": debezium_changes}
_BINARY: Final = {"canal": latin_1, "debezium": base_64}


def _columns(text: str) -> str:
    names = [column.name for column in parse_columns(text)]
    if taken := {DELETED, ORDER} & set(names):
        raise ValueError(f"{', '.join(sorted(taken))}: reserved for a column that every row has; expected another name")
    return text


def _table(pattern: str) -> str:
    if not set(".*?[") & set(pattern):
        raise ValueError(
            f"{pattern!r} matches no table, because it has no database; expected database.table or *.{pattern}"
        )
    return pattern


class Options(HandlerOptions):
    """The format and tables of the messages, and how they become rows."""

    format: Literal["canal", "debezium"] = Field(
        description="canal: flat messages of Canal; debezium: envelopes of Debezium in JSON, with or without schema"
    )
    tables: list[Annotated[str, AfterValidator(_table)]] = Field(
        description="the tables to read, as database.table, or schema.table in PostgreSQL; * matches "
        "any characters: shop.orders_*",
        min_length=1,
    )
    columns: Annotated[str, AfterValidator(_columns)] = Field(
        alias="schema", description="the columns of the rows, with types: id bigint, amount decimal(12,2)"
    )
    keys: list[str] = Field(description="the key columns of a row, the same as sink.keys", min_length=1)
    order: Literal["offset", "position", "time"] = option(
        "offset",
        "the order of changes with the same key: offset, the position in the queue, if each key has one "
        "queue; position, the position in the source's log (debezium); or time, the time in the source, then the "
        "position in the queue, which may be wrong if statements wait for each other",
    )
    time_unit: Literal["milliseconds", "microseconds", "nanoseconds"] | None = option(
        None, "the unit of timestamps that are numbers since 1970 (debezium without schema)"
    )
    bad_rows: Literal["fail", "leave_out", "only"] = option(
        "fail",
        "for messages that are not changes: fail at the first one; skip them; or "
        "return only them, with the reason in _bad_row",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Options:
        names = [column.name for column in parse_columns(self.columns)]
        if missing := [name for name in self.keys if name not in names]:
            raise ValueError(f"keys: {', '.join(missing)} is not in schema, which has {', '.join(names)}")
        if self.format == "canal" and (self.order == "position" or self.time_unit is not None):
            key = "order: position" if self.order == "position" else "time_unit"
            raise ValueError(f"{key} is not possible with canal, whose messages do not contain it; remove it")
        return self


def cdc(frame: DataFrame, spark: SparkSession, options: Options) -> DataFrame:
    """Return changes of Canal or Debezium as rows with `_deleted` and `_order`, for the sink postgresql with keys."""
    decoder = ChangeDecoder(options)
    if options.bad_rows == "only":
        return frame.select(*READ_COLUMNS).mapInArrow(BadRows(decoder), BAD_DDL)
    columns = ", ".join(column.sql for column in parse_columns(options.columns))
    rows = ChangeRows(decoder, must_fit=options.bad_rows == "fail")
    read = [*READ_COLUMNS, BROKER] if BROKER in frame.columns else READ_COLUMNS
    changes = frame.select(*read).mapInArrow(rows, f"{columns}, {DELETED} boolean, {ORDER} array<bigint>, {PLACE_DDL}")
    return changes.withMetadata(ORDER, {**_kind(options), KEYS_METADATA: options.keys})


def _kind(options: Options) -> dict[str, Any]:
    """Return metadata about the column `_order`. Its offsets are comparable within one format and the same topics."""
    if options.order != "offset":
        return {ORDER_KIND: f"cdc, order: {options.order}"}
    return {ORDER_KIND: f"cdc, format: {options.format}, order: offset in {{topics}}"}


class ChangeDecoder:
    """Decodes a message's changes. Picklable, because each task of an executor receives a copy."""

    def __init__(self, options: Options) -> None:
        self.columns: tuple[ChangeColumn, ...] = parse_columns(options.columns)
        self._tables: Sequence[str] = tuple(options.tables)
        self._order = options.order
        self._changes: Callable[..., Iterator[RowChange]] = _CHANGES[options.format]
        reader = ValueConverter(self.columns, _BINARY[options.format], PER_SECOND.get(options.time_unit or "", 0))
        self._make = ChangeMaker(self.columns, options.keys, reader)

    def changes(self, body: bytes | None, queue_offset: int) -> list[tuple[RowChange, list[int]]]:
        """Return a message's changes, each with its value of `_order`. Raises BadChangeError, BadValueError."""
        found = list(self._changes(body or b"", self._tables, self._make))
        placed = [(change, self._place(change, queue_offset)) for change in found]
        if any(not -_BIGINT <= number < _BIGINT for _, place in placed for number in place):
            raise BadChangeError("a number of the position does not fit in 64 bits")
        return placed

    def reason(self, body: bytes | None) -> str:
        """Return the reason why a message cannot be decoded; empty if it can."""
        try:
            self.changes(body, 0)
        except (BadChangeError, BadValueError) as error:
            return str(error)[:_MAX_CHARACTERS]
        return ""

    def _place(self, change: RowChange, queue_offset: int) -> list[int]:
        if self._order == "offset":
            return [queue_offset, change.number]
        if self._order == "time":
            return [change.time_ms, queue_offset, change.number]
        if change.position is None:
            raise BadChangeError("source has no position in a log (lsn, scn, file and pos); set order: offset")
        return [change.position, change.number, queue_offset]


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """A function for `mapInArrow` that returns the rows of changes."""

    decoder: ChangeDecoder
    must_fit: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode a partition. Raises ValueError with topic, queue and offset for a bad message, if `must_fit`."""
        import pyarrow as pa

        schema = _arrow_schema(self.decoder.columns)
        for batch in batches:
            rows = [row for place, body in _messages(batch) for row in self._rows(body, place)]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    def _rows(self, body: bytes | None, place: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            changes = self.decoder.changes(body, place["queue_offset"])
        except (BadChangeError, BadValueError) as error:
            if self.must_fit:
                broker = f" of {place[BROKER]}" if BROKER in place else ""
                where = f"{place['topic']}, queue {place['queue_id']}{broker}, offset {place['queue_offset']}"
                raise ValueError(
                    f"the message at {where} ({place['msg_id']}) is not a change of a row: "
                    f"{str(error)[:_MAX_CHARACTERS]}; set bad_rows: leave_out, and use a second group that stores "
                    "such messages with bad_rows: only"
                ) from None
            return []
        return [{**one.row, DELETED: one.is_deleted, ORDER: order, PLACE_COLUMN: place} for one, order in changes]


@dataclass(frozen=True, slots=True)
class BadRows:
    """A function for `mapInArrow` that returns the messages that are not changes, with the reason in `_bad_row`."""

    decoder: ChangeDecoder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            reasons = [self.decoder.reason(body) for _, body in _messages(batch)]
            bad = batch.append_column(BAD, pa.array(reasons, pa.string()))
            yield bad.filter(pa.array([bool(reason) for reason in reasons], pa.bool_()))


def _messages(batch: pa.RecordBatch) -> Iterator[tuple[dict[str, Any], bytes | None]]:
    names = [name for name in batch.schema.names if name != "body"]
    places = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    for place, body in zip(places, batch.column("body").to_pylist(), strict=True):
        yield dict(zip(names, place, strict=True)), body


def _arrow_schema(columns: Sequence[ChangeColumn]) -> pa.Schema:
    import pyarrow as pa

    plain = {
        "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(), "float": pa.float32(),
        "double": pa.float64(), "boolean": pa.bool_(), "string": pa.string(), "binary": pa.binary(),
        "date": pa.date32(), "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ntz": pa.timestamp("us"),
    }  # fmt: skip
    types = {
        column.name: pa.decimal128(column.precision, column.scale) if column.kind == "decimal" else plain[column.kind]
        for column in columns
    }
    text = pa.string()
    place = pa.struct([("topic", text), (BROKER, text), ("queue_id", pa.int32()), ("queue_offset", pa.int64())])
    return pa.schema({**types, DELETED: pa.bool_(), ORDER: pa.list_(pa.int64()), PLACE_COLUMN: place})
