"""Messages as Arrow record batches, of exactly the types that Spark expects of the columns' SQL types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from rmqd.spark.columns import COLUMNS
from rmqd.spark.property_arrays import PropertyArrays
from rmqd.wire.message import MessageQueue
from rmqd.wire.message_columns import HostTexts, MessageColumns, Texts
from rmqd.wire.properties import KEYS, RETRY_TOPIC, SHARDING_KEY, TAGS, UNIQ_KEY
from rmqd.wire.topics import RETRY_PREFIX

_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
_BY_PROPERTY: Final = {"keys": KEYS, "tags": TAGS, "sharding_key": SHARDING_KEY}
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")
_OFFSET: Final = Struct(">q")


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of the batches."""
    return pa.schema([(name, _TYPES[COLUMNS[name][0]]) for name in columns])


class BatchBuilder:
    """Collects one queue's messages, and makes batches of them."""

    def __init__(self, columns: Sequence[str], queue: MessageQueue, *, permissive: bool = False) -> None:
        self._columns = tuple(columns)
        self._schema = arrow_schema(columns)
        self._queue = queue
        self._hosts = HostTexts()
        self._topics = Texts()
        self._permissive = permissive
        self.messages = MessageColumns(permissive=permissive)

    def finish(self) -> pa.RecordBatch:
        """A batch of all that was put into `messages` since the last one."""
        rows, self.messages = _Rows(self.messages), MessageColumns(permissive=self._permissive)
        return pa.RecordBatch.from_arrays([self._array(name, rows) for name in self._columns], schema=self._schema)

    def _array(self, name: str, rows: _Rows) -> pa.Array:
        make = _MAKERS.get(name)
        if make is not None:
            return make(self, rows)
        values, kind = rows.messages.column(name), COLUMNS[name][0]
        if kind == "timestamp":
            return pa.array(values, pa.int64()).cast(_MILLISECONDS).cast(_TYPES[kind])
        return pa.array(values, _TYPES[kind])

    def _body(self, rows: _Rows) -> pa.Array:
        return pa.array(rows.messages.bodies, pa.binary())

    def _broker(self, rows: _Rows) -> pa.Array:
        return pa.repeat(pa.scalar(self._queue.broker_name, pa.string()), len(rows.messages))

    def _queue_id(self, rows: _Rows) -> pa.Array:
        return pa.repeat(pa.scalar(self._queue.queue_id, pa.int32()), len(rows.messages))

    def _source_topic(self, rows: _Rows) -> pa.Array:
        return pa.array(list(map(self._topics.__getitem__, rows.messages.topics)), pa.string())

    def _topic(self, rows: _Rows) -> pa.Array:
        names = self._source_topic(rows)
        if self._queue.topic.startswith(RETRY_PREFIX):
            names = pc.coalesce(rows.properties.column(RETRY_TOPIC), names)
        return names

    def _born_host(self, rows: _Rows) -> pa.Array:
        return pa.array(list(map(self._hosts.__getitem__, rows.messages.column("born_host"))), pa.string())

    def _store_host(self, rows: _Rows) -> pa.Array:
        return pa.array(list(map(self._hosts.__getitem__, rows.messages.column("store_host"))), pa.string())

    def _properties(self, rows: _Rows) -> pa.Array:
        return rows.properties.map()

    def _msg_id(self, rows: _Rows) -> pa.Array:
        ids = rows.properties.column(UNIQ_KEY)
        # only what is not of a producer has none
        return pc.coalesce(ids, pa.array(rows.offset_ids, pa.string())) if ids.null_count else ids

    def _decode_error(self, rows: _Rows) -> pa.Array:
        messages = rows.messages
        if not messages.errors:
            return pa.nulls(len(messages), pa.string())
        return pa.array(list(map(messages.errors.get, range(len(messages)))), pa.string())

    def _offset_msg_id(self, rows: _Rows) -> pa.Array:
        return pa.array(rows.offset_ids, pa.string())


class _Rows:
    """What several columns are made of, made once."""

    def __init__(self, messages: MessageColumns) -> None:
        self.messages = messages
        self._properties: PropertyArrays | None = None
        self._offset_ids: list[str] | None = None

    @property
    def properties(self) -> PropertyArrays:
        if self._properties is None:
            self._properties = PropertyArrays(self.messages.properties)
        return self._properties

    @property
    def offset_ids(self) -> list[str]:
        if self._offset_ids is None:
            column = self.messages.column
            pairs = zip(column("store_host"), column("commit_log_offset"), strict=True)
            pack = _OFFSET.pack
            self._offset_ids = [(host + pack(offset)).hex().upper() for host, offset in pairs]
        return self._offset_ids


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
    "born_host": BatchBuilder._born_host,
    "store_host": BatchBuilder._store_host,
    "decode_error": BatchBuilder._decode_error,
    **{column: _by_property(name) for column, name in _BY_PROPERTY.items()},
}
