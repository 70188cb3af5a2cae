"""Messages as Arrow record batches, of exactly the types that Spark expects of the columns' SQL types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from rmqd.spark.columns import COLUMNS
from rmqd.wire.message import Message, MessageBlock
from rmqd.wire.properties import KEYS, SHARDING_KEY, TAGS

_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}

_READ: Final[dict[str, Callable[[Message], object]]] = {
    "topic": lambda message: message.topic,
    "broker": lambda message: message.broker_name,
    "queue_id": lambda message: message.queue_id,
    "queue_offset": lambda message: message.queue_offset,
    "msg_id": lambda message: message.msg_id,
    "offset_msg_id": lambda message: message.offset_msg_id,
    "keys": lambda message: message.properties.get(KEYS),
    "tags": lambda message: message.properties.get(TAGS),
    "body": lambda message: message.body,
    "flag": lambda message: message.flag,
    "sys_flag": lambda message: message.sys_flag,
    "born_timestamp": lambda message: message.born_timestamp * 1000,
    "store_timestamp": lambda message: message.store_timestamp * 1000,
    "born_host": lambda message: message.born_host,
    "store_host": lambda message: message.store_host,
    "reconsume_times": lambda message: message.reconsume_times,
    "sharding_key": lambda message: message.properties.get(SHARDING_KEY),
    "commit_log_offset": lambda message: message.commit_log_offset,
    "store_size": lambda message: message.store_size,
    "source_topic": lambda message: message.record_topic,
}


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of the batches."""
    return pa.schema([(name, _TYPES[COLUMNS[name][0]]) for name in columns])


class BatchBuilder:
    """Collects messages, and makes a batch of them."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._schema = arrow_schema(columns)
        self._blocks: list[MessageBlock] = []
        self.rows = 0
        self.size_bytes = 0

    def add(self, block: MessageBlock) -> None:
        """Take a block's messages."""
        self._blocks.append(block)
        self.rows += len(block.messages)
        self.size_bytes += block.size_bytes

    def finish(self) -> pa.RecordBatch:
        """A batch of all that was added since the last one."""
        messages = [message for block in self._blocks for message in block.messages]
        self._blocks, self.rows, self.size_bytes = [], 0, 0
        return pa.RecordBatch.from_arrays([_array(name, messages) for name in self._columns], schema=self._schema)


def _array(name: str, messages: list[Message]) -> pa.Array:
    kind = COLUMNS[name][0]
    if name == "properties":
        return _map_array(messages)
    values: list[Any] = list(map(_READ[name], messages))
    if kind == "timestamp":
        return pa.array(values, pa.int64()).cast(_TYPES[kind])
    return pa.array(values, _TYPES[kind])


def _map_array(messages: list[Message]) -> pa.Array:
    starts, names, values = [0], list[str](), list[str]()
    for message in messages:
        properties = message.properties
        names += properties.keys()
        values += properties.values()
        starts.append(len(names))
    return pa.MapArray.from_arrays(
        pa.array(starts, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
    )
