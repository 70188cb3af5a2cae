"""Converts messages to Arrow record batches. Each column has the Arrow type that Spark expects for its SQL type.

`BodyDecoder` decodes bodies into the columns `value` and `_bad_row`, on executors.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from rmqd.runtime.plain_text import escape_surrogates
from rmqd.spark.source.buffer_arrays import PropertyArrays, array_of_rows, constant_array
from rmqd.spark.source.source_columns import COLUMN_TYPES, DecodingOptions
from rmqd.spark.source.source_records import DecodedRecords, RecordBuffer
from rmqd.spark.values.column_kinds import ColumnKind
from rmqd.spark.values.schema_registry import RegistryUnavailableError
from rmqd.spark.values.value_format import BAD_ROW_COLUMN, VALUE_COLUMN, ValueFormat
from rmqd.wire.messages.message_id import format_host, offset_message_id
from rmqd.wire.messages.properties import INNER_BATCH, KEYS, RETRY_TOPIC, SHARDING_KEY, TAGS, UNIQ_KEY
from rmqd.wire.topics import is_retry_topic

_TYPES: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
_BY_PROPERTY: Final = {"keys": KEYS, "tags": TAGS, "sharding_key": SHARDING_KEY}
_NUMBERS: Final = {"int": np.int32, "bigint": np.int64}
_LAST_MILLISECOND: Final = np.iinfo(np.int64).max // 1000
_HEX: Final = np.frombuffer(np.arange(1 << 16, dtype=">u2").tobytes().hex().upper().encode(), np.uint32)
"""The four hexadecimal digits of each 16-bit number."""
NO_BODY_REASON: Final = "the message is corrupt, and has no body"
_MAX_CHARACTERS: Final = 300  # maximum length of a reason in `_bad_row`


def batch_schema(decoding: DecodingOptions) -> pa.Schema:
    """Return the Arrow schema of the record batches that this decoding produces."""
    kinds = {name: _TYPES[kind] for name, (kind, _) in COLUMN_TYPES.items()}
    if decoding.value_format is not None and decoding.value_format.kind is not None:
        kinds |= {VALUE_COLUMN: arrow_type(decoding.value_format.kind), BAD_ROW_COLUMN: pa.string()}
    return pa.schema([(name, kinds[name]) for name in decoding.columns])


def arrow_type(kind: ColumnKind) -> pa.DataType:
    """Return the Arrow type that Spark expects for a column of this SQL type."""
    match kind.name, [(name, arrow_type(inner)) for name, inner in kind.fields]:
        case "struct", fields:
            return pa.struct(fields)
        case "array", [element]:
            return pa.list_(pa.field(*element))
        case "map", [(_, values)]:
            return pa.map_(pa.string(), values)
        case "decimal", _:
            return pa.decimal128(kind.precision, kind.scale)
    return _TYPES[kind.name]


class BatchBuilder:
    """Collects messages in `records`, and converts them to record batches."""

    def __init__(self, decoding: DecodingOptions) -> None:
        self._decoding = decoding
        self._schema = batch_schema(decoding)
        value = decoding.value_format if any(map(decoding.uses, (VALUE_COLUMN, BAD_ROW_COLUMN))) else None
        self._bodies = None if value is None else BodyDecoder(value)
        self.records = RecordBuffer()

    def finish(self) -> pa.RecordBatch:
        """Return the messages in `records` as a batch, and empty `records`. Raises like `RecordBuffer.finish`."""
        records, self.records = self.records, RecordBuffer()
        decoding = self._decoding
        messages = records.finish(permissive=decoding.is_permissive, check_crc=decoding.checks_crc)
        columns = _Columns(messages)
        made = {} if self._bodies is None else self._bodies.columns(messages.bodies)
        for name in decoding.columns:
            if name not in made:
                is_used = decoding.uses(name)
                made[name] = columns.array(name) if is_used else pa.nulls(len(messages), self._schema.field(name).type)
        return pa.RecordBatch.from_arrays([made[name] for name in decoding.columns], schema=self._schema)


class _Columns:
    """The Arrow columns of a batch of messages. Values that several columns need are computed once."""

    def __init__(self, messages: DecodedRecords) -> None:
        self._messages = messages

    def array(self, name: str) -> pa.Array:
        messages, queues = self._messages, self._messages.queues
        match name:
            case "body":
                return messages.bodies
            case "broker":
                return messages.repeat_by_queue([queue.broker_name for queue in queues], pa.string())
            case "queue_id":
                return messages.repeat_by_queue([queue.queue_id for queue in queues], pa.int32())
            case "source_topic":
                return messages.topics()
            case "topic":
                return self._topic()
            case "properties":
                return self._properties.maps()
            case "keys" | "tags" | "sharding_key":
                return self._properties.column(_BY_PROPERTY[name])
            case "msg_id":
                ids = self._properties.column(UNIQ_KEY)
                # every producer sets a unique id, so only messages that no producer sent lack it
                return pc.coalesce(ids, self._stored_id()) if ids.null_count else ids
            case "offset_msg_id":
                return self._offset_ids
            case "born_host" | "store_host":
                return self._host(name)
            case "decode_error":
                return pa.array(list(map(messages.errors.get, range(len(messages)))), pa.string())
        values, kind = messages.fixed_size_field(name), COLUMN_TYPES[name][0]
        if kind == "timestamp":
            return pa.array(np.clip(values, -_LAST_MILLISECOND, _LAST_MILLISECOND) * 1000).view(_TYPES[kind])
        return pa.array(values.astype(_NUMBERS[kind], copy=False))

    @cached_property
    def _properties(self) -> PropertyArrays:
        return PropertyArrays(self._messages.properties())

    @cached_property
    def _offset_ids(self) -> pa.Array:
        hosts, offsets = self._messages.hosts("store_host"), self._messages.fixed_size_field("commit_log_offset")
        if isinstance(hosts, list):
            pairs = zip(hosts, offsets.tolist(), strict=True)
            return pa.array([offset_message_id(host, offset) for host, offset in pairs], pa.string())
        parts = np.empty((len(hosts), 2), hosts.dtype)
        parts[:, 0], parts[:, 1] = hosts, offsets
        return array_of_rows(_HEX[parts.view(">u2")].view(np.uint8), pa.string())

    def _stored_id(self) -> pa.Array:
        """Return the same ids as `Message.stored_id`."""
        are_members = (self._messages.fixed_size_field("sys_flag") & INNER_BATCH) != 0
        if not are_members.any():
            return self._offset_ids
        offsets = pa.array(self._messages.fixed_size_field("queue_offset").astype(np.int64)).cast(pa.string())
        return pc.if_else(are_members, pc.binary_join_element_wise(self._offset_ids, offsets, "-"), self._offset_ids)

    def _topic(self) -> pa.Array:
        names = self._messages.topics()
        are_retries = [is_retry_topic(queue.topic) for queue in self._messages.queues]
        if not any(are_retries):
            return names
        first_sent_to = pc.coalesce(self._properties.column(RETRY_TOPIC), names)
        return pc.if_else(self._messages.repeat_by_queue(are_retries, pa.bool_()), first_sent_to, names)

    def _host(self, name: str) -> pa.Array:
        """Return the hosts as text. Each distinct host is formatted once, because a topic's messages have few hosts."""
        hosts = self._messages.hosts(name)
        if not isinstance(hosts, list) and len(hosts) and (hosts == hosts[0]).all():
            return constant_array(format_host(hosts[:1].tobytes()), len(hosts), pa.string())
        stored = pa.array(hosts if isinstance(hosts, list) else hosts.view(np.int64)).dictionary_encode()
        different = stored.dictionary.to_pylist()
        if not isinstance(hosts, list):
            different = np.array(different, np.int64).view("V8").tolist()
        return pa.array(list(map(format_host, different)), pa.string()).take(stored.indices)


class BodyDecoder:
    """Converts bodies to the columns `value` and `_bad_row`."""

    def __init__(self, value: ValueFormat) -> None:
        assert value.kind is not None
        self._decode = value.decoder()
        self._type = arrow_type(value.kind)

    def columns(self, bodies: pa.Array) -> dict[str, pa.Array]:
        """Return the columns by name. A value that Arrow cannot store, such as a lone surrogate, becomes null."""
        decoded = list(map(self._decoded, bodies.to_pylist()))
        try:
            values = pa.array([value for value, _ in decoded], self._type)
        except Exception:  # noqa: BLE001  Arrow raises many kinds if any row is bad; `_storable` finds the bad rows
            decoded = list(map(self._storable, decoded))
            values = pa.array([value for value, _ in decoded], self._type)
        return {VALUE_COLUMN: values, BAD_ROW_COLUMN: pa.array([reason for _, reason in decoded], pa.string())}

    def _decoded(self, body: bytes | None) -> tuple[Any, str | None]:
        if body is None:
            return None, NO_BODY_REASON
        try:
            return self._decode(body), None
        except RegistryUnavailableError:  # the body may be valid, so the task must fail, and Spark retries it
            raise
        except Exception as error:  # noqa: BLE001  decoders raise many kinds
            return None, _reason(error)

    def _storable(self, decoded: tuple[Any, str | None]) -> tuple[Any, str | None]:
        try:
            pa.array([decoded[0]], self._type)
        except Exception as error:  # noqa: BLE001  as above
            return None, _reason(error)
        return decoded


def _reason(error: Exception) -> str:
    """Return the text of an error for `_bad_row`. Quoted surrogates are escaped, because Arrow cannot store them."""
    return escape_surrogates((str(error) or type(error).__name__)[:_MAX_CHARACTERS])
