"""Messages as Arrow record batches, with exactly the Arrow types that Spark expects for the columns' SQL types.

`ValueColumns` adds the columns `value` and `_bad_row`, decoded from the bodies on executors.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from rmqd.spark.source.framed_reply import PropertyArrays
from rmqd.spark.source.range_slices import of_equal_length, repeated
from rmqd.spark.source.source_columns import COLUMNS, Decoding
from rmqd.spark.source.source_records import Decoded, Records
from rmqd.spark.values.column_kinds import ColumnKind
from rmqd.spark.values.schema_registry import RegistryAwayError
from rmqd.spark.values.value_format import BAD_ROW, VALUE, ValueFormat
from rmqd.wire.messages.message_id import format_host, offset_message_id
from rmqd.wire.messages.properties import INNER_BATCH, KEYS, RETRY_TOPIC, SHARDING_KEY, TAGS, UNIQ_KEY
from rmqd.wire.topics import is_retry_topic

_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
_BY_PROPERTY: Final = {"keys": KEYS, "tags": TAGS, "sharding_key": SHARDING_KEY}
_NUMBERS: Final = {"int": np.int32, "bigint": np.int64}
_LAST_MILLISECOND: Final = np.iinfo(np.int64).max // 1000
_HEX: Final = np.frombuffer(np.arange(1 << 16, dtype=">u2").tobytes().hex().upper().encode(), np.uint32)
"""The four hexadecimal digits of each 16-bit number."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of the batches."""
    return pa.schema([(name, _TYPES[COLUMNS[name][0]]) for name in columns])


class BatchBuilder:
    """Collects messages, and converts them to batches."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._schema = arrow_schema(decoding.columns)
        self.records = Records()

    def finish(self) -> pa.RecordBatch:
        """Return a batch of all messages added to `records` since the last batch.

        Raises ProtocolError for damaged data; if permitted, a corrupt message becomes a row without body instead.
        """
        records, self.records = self.records, Records()
        decoding = self._decoding
        rows = _Rows(records.finish(permissive=decoding.permissive, check_crc=decoding.check_crc))
        return pa.RecordBatch.from_arrays([self._array(name, rows) for name in decoding.columns], schema=self._schema)

    def _array(self, name: str, rows: _Rows) -> pa.Array:
        if self._decoding.used is not None and name not in self._decoding.used:
            return pa.nulls(len(rows.messages), _TYPES[COLUMNS[name][0]])
        make = _MAKERS.get(name)
        if make is not None:
            return make(self, rows)
        values, kind = rows.messages.fixed(name), COLUMNS[name][0]
        if kind == "timestamp":
            return pa.array(np.clip(values, -_LAST_MILLISECOND, _LAST_MILLISECOND) * 1000).view(_TYPES[kind])
        return pa.array(values.astype(_NUMBERS[kind], copy=False))

    def _body(self, rows: _Rows) -> pa.Array:
        return rows.messages.bodies

    def _broker(self, rows: _Rows) -> pa.Array:
        messages = rows.messages
        return messages.by_queue([queue.broker_name for queue in messages.queues], pa.string())

    def _queue_id(self, rows: _Rows) -> pa.Array:
        messages = rows.messages
        return messages.by_queue([queue.queue_id for queue in messages.queues], pa.int32())

    def _source_topic(self, rows: _Rows) -> pa.Array:
        return rows.messages.topics()

    def _topic(self, rows: _Rows) -> pa.Array:
        names, are_retries = self._source_topic(rows), [is_retry_topic(queue.topic) for queue in rows.messages.queues]
        if not any(are_retries):
            return names
        first_sent_to = pc.coalesce(rows.properties.column(RETRY_TOPIC), names)
        return pc.if_else(rows.messages.by_queue(are_retries, pa.bool_()), first_sent_to, names)

    def _properties(self, rows: _Rows) -> pa.Array:
        return rows.properties.map()

    def _msg_id(self, rows: _Rows) -> pa.Array:
        ids = rows.properties.column(UNIQ_KEY)
        # only messages that were not sent by a producer have none
        return pc.coalesce(ids, self._stored_id(rows)) if ids.null_count else ids

    def _stored_id(self, rows: _Rows) -> pa.Array:
        """Return the same ids as `Message.stored_id`."""
        are_members = (rows.messages.fixed("sys_flag") & INNER_BATCH) != 0
        if not are_members.any():
            return rows.offset_ids
        offsets = pa.array(rows.messages.fixed("queue_offset").astype(np.int64)).cast(pa.string())
        return pc.if_else(are_members, pc.binary_join_element_wise(rows.offset_ids, offsets, "-"), rows.offset_ids)

    def _decode_error(self, rows: _Rows) -> pa.Array:
        errors = rows.messages.errors
        if not errors:
            return pa.nulls(len(rows.messages), pa.string())
        return pa.array(list(map(errors.get, range(len(rows.messages)))), pa.string())

    def _offset_msg_id(self, rows: _Rows) -> pa.Array:
        return rows.offset_ids


class _Rows:
    """Intermediate results that several columns share, computed once."""

    def __init__(self, messages: Decoded) -> None:
        self.messages = messages

    @cached_property
    def properties(self) -> PropertyArrays:
        return PropertyArrays(self.messages.properties())

    @cached_property
    def offset_ids(self) -> pa.Array:
        hosts, offsets = self.messages.hosts("store_host"), self.messages.fixed("commit_log_offset")
        if isinstance(hosts, list):
            pairs = zip(hosts, offsets.tolist(), strict=True)
            return pa.array([offset_message_id(host, offset) for host, offset in pairs], pa.string())
        parts = np.empty((len(hosts), 2), hosts.dtype)
        parts[:, 0], parts[:, 1] = hosts, offsets
        return of_equal_length(_HEX[parts.view(">u2")].view(np.uint8), pa.string())


def _host(name: str) -> Callable[[BatchBuilder, _Rows], Any]:
    def make(_: BatchBuilder, rows: _Rows) -> pa.Array:
        """Format each distinct host once, because a topic has few hosts."""
        hosts = rows.messages.hosts(name)
        if not isinstance(hosts, list) and len(hosts) and (hosts == hosts[0]).all():
            return repeated(format_host(hosts[:1].tobytes()), len(hosts), pa.string())
        stored = pa.array(hosts if isinstance(hosts, list) else hosts.view(np.int64)).dictionary_encode()
        different = stored.dictionary.to_pylist()
        if not isinstance(hosts, list):
            different = np.array(different, np.int64).view("V8").tolist()
        return pa.array(list(map(format_host, different)), pa.string()).take(stored.indices)

    return make


def _by_property(name: str) -> Callable[[BatchBuilder, _Rows], Any]:
    def make(_: BatchBuilder, rows: _Rows) -> pa.Array:
        return rows.properties.column(name)

    return make


_MAKERS: Final[dict[str, Callable[[BatchBuilder, _Rows], Any]]] = {
    "topic": BatchBuilder._topic,
    "source_topic": BatchBuilder._source_topic,
    "broker": BatchBuilder._broker,
    "queue_id": BatchBuilder._queue_id,
    "msg_id": BatchBuilder._msg_id,
    "offset_msg_id": BatchBuilder._offset_msg_id,
    "body": BatchBuilder._body,
    "properties": BatchBuilder._properties,
    "born_host": _host("born_host"),
    "store_host": _host("store_host"),
    "decode_error": BatchBuilder._decode_error,
    **{column: _by_property(name) for column, name in _BY_PROPERTY.items()},
}


BODY: Final = "body"
NO_BODY: Final = "the message is corrupt, and has no body"
_MOST_CHARACTERS: Final = 300  # maximum length of a reason


class ValueColumns:
    """Converts batches of the source's own columns to batches with the columns of a read."""

    def __init__(self, value: ValueFormat, columns: Sequence[str], used: frozenset[str] | None = None) -> None:
        """Columns that are not in `used` may be null; None means that all are used."""
        self._columns = tuple(columns)
        self._is_decoded = used is None or not used.isdisjoint((VALUE, BAD_ROW))
        self.used = used if used is None or not self._is_decoded else used | {BODY}
        """The columns that the source must decode."""
        self._decode = value.decoder()
        self._types = value_types(value)

    @property
    def stored(self) -> tuple[str, ...]:
        """The columns that the source must read."""
        stored = [name for name in self._columns if name not in (VALUE, BAD_ROW)]
        return tuple(stored if BODY in stored else [*stored, BODY])

    def over(self, read: Generator[pa.RecordBatch, None, int]) -> Generator[pa.RecordBatch, None, int]:
        """Yield all batches of a read, and return its result."""
        while True:
            try:
                batch = next(read)
            except StopIteration as end:
                return int(end.value)
            yield self.of(batch)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns of the read, in order."""
        values: list[Any] = [None] * len(batch)
        reasons: list[str | None] = [None] * len(batch)
        if self._is_decoded:
            for place, body in enumerate(batch.column(BODY).to_pylist()):
                values[place], reasons[place] = self._decoded(body)
        made = {VALUE: self._values(values, reasons), BAD_ROW: pa.array(reasons, pa.string())}
        return pa.RecordBatch.from_arrays(
            [made[name] if name in made else batch.column(name) for name in self._columns], names=list(self._columns)
        )

    def _values(self, values: list[Any], reasons: list[str | None]) -> pa.Array:
        """Return the column. Values that Arrow cannot store, such as half a surrogate pair, become null."""
        kind = self._types[VALUE]
        try:
            return pa.array(values, kind)
        except Exception:  # noqa: BLE001  conversions raise many kinds; at least one row is bad, and found below
            for place, value in enumerate(values):
                try:
                    pa.array([value], kind)
                except Exception as error:  # noqa: BLE001
                    values[place], reasons[place] = None, _reason(error)
        return pa.array(values, kind)

    def _decoded(self, body: bytes | None) -> tuple[Any, str | None]:
        if body is None:
            return None, NO_BODY
        try:
            return self._decode(body), None
        except RegistryAwayError:  # the body may be good: the task fails, and is retried
            raise
        except Exception as error:  # noqa: BLE001  decoders raise many kinds
            return None, _reason(error)


def _reason(error: Exception) -> str:
    text = (str(error) or type(error).__name__)[:_MOST_CHARACTERS]
    return text.encode(errors="backslashreplace").decode()  # the reason may quote text that a column cannot store


def value_types(value: ValueFormat) -> dict[str, pa.DataType]:
    """Return the Arrow types that Spark expects for the two columns."""
    from pyspark.sql.pandas.types import to_arrow_type

    assert value.kind is not None
    return {VALUE: to_arrow_type(_spark_type(value.kind), timezone="UTC"), BAD_ROW: pa.string()}


def _spark_type(kind: ColumnKind) -> Any:
    from pyspark.sql import types

    if kind.name == "struct":
        return types.StructType([types.StructField(name, _spark_type(inner)) for name, inner in kind.fields])
    if kind.name == "array":
        return types.ArrayType(_spark_type(kind.fields[0][1]))
    if kind.name == "map":
        return types.MapType(types.StringType(), _spark_type(kind.fields[0][1]))
    if kind.name == "decimal":
        return types.DecimalType(kind.precision, kind.scale)
    return _SPARK_TYPES[kind.name]()


def _spark_types() -> dict[str, Any]:
    from pyspark.sql import types

    found = [
        types.BooleanType, types.ByteType, types.ShortType, types.IntegerType, types.LongType, types.FloatType,
        types.DoubleType, types.StringType, types.BinaryType, types.DateType, types.TimestampType,
        types.TimestampNTZType,
    ]  # fmt: skip
    return {kind().simpleString(): kind for kind in found}


_SPARK_TYPES: Final = _spark_types()
