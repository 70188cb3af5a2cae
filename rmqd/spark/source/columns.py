"""The columns of the source: names, SQL types and content. No I/O; imports neither pyspark nor pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rmqd.errors import ConfigError
from rmqd.spark.option_values import meant_or_all
from rmqd.spark.values.value_format import BAD_ROW, VALUE, ValueFormat

# name: (SQL type, content)
COLUMNS: Final = {
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
    "sharding_key": ("string", "the key by which the producer chose the queue"),
    "commit_log_offset": ("bigint", "its offset in the broker's commit log"),
    "store_size": ("int", "its size in the broker's commit log, in bytes"),
    "source_topic": ("string", "the topic that it was read from: for a retried message the group's retry topic"),
    "decode_error": ("string", "with `mode` PERMISSIVE: why a corrupt message has no body"),
}
DEFAULT_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("source_topic", "decode_error"))
"""The default columns of a pipeline, which decodes only the columns that it uses."""
READ_COLUMNS: Final = ("keys", "body", "topic", "queue_id", "queue_offset", "store_timestamp", "tags")
"""The default columns of `load()`: as in the Kafka source, plus the tag. Spark does not report which ones are used."""
PERMISSIVE_COLUMNS: Final = (*DEFAULT_COLUMNS, "decode_error")
# additional columns with the option `value`
VALUE_COLUMNS: Final = {
    VALUE: ("struct", "the decoded body, with the fields of its schema; null if it does not fit"),
    BAD_ROW: ("string", "why the body does not fit its schema; null if it fits"),
}


@dataclass(frozen=True, slots=True)
class Decoding:
    """How an executor decodes messages: which columns, and how strictly. Picklable."""

    columns: tuple[str, ...]
    used: frozenset[str] | None = None
    """The columns to decode, the others are null; None for all."""
    permissive: bool = False
    """Whether a corrupt message becomes a row without a body instead of an error."""
    check_crc: bool = True
    """Whether a message is corrupt if its body does not match its stored CRC."""
    value: ValueFormat | None = None
    """How to decode bodies into a column, if they are decoded."""

    @property
    def has_values(self) -> bool:
        """Whether the columns need decoded bodies."""
        return self.value is not None and not VALUE_COLUMNS.keys().isdisjoint(self.columns)


def names_of_schema(fields: Sequence[tuple[str, str]], value: ValueFormat | None = None) -> tuple[str, ...]:
    """Return the columns that a reader requests with `schema()`, given as names and SQL types.

    Raises ConfigError with a line for each unknown column or wrong type.
    """
    problems: list[object] = []
    names = [name for name, _ in fields]
    known = (*COLUMNS, *(VALUE_COLUMNS if value is not None else ()))
    for name, kind in fields:
        if name not in known:
            problems.append(f"schema: unknown column {name}; {meant_or_all(name, known)}")
        elif name == VALUE and value is not None:
            problems += value.problems_with(kind)
        elif name != BAD_ROW and kind != COLUMNS[name][0]:
            problems.append(f"schema: {name} is {kind}; expected {COLUMNS[name][0]}; cast the column after reading it")
        elif names.count(name) > 1:
            problems.append(f"schema: {name} occurs more than once")
    if problems:
        raise ConfigError(problems)
    return tuple(names)


def ddl(names: Iterable[str], value: ValueFormat | None = None) -> str:
    """Return the schema in SQL. Raises ConfigError if the type of bodies is unknown."""
    kinds = {name: kind for name, (kind, _) in COLUMNS.items()}
    if value is not None:
        kinds |= {VALUE: value.sql, BAD_ROW: "string"}
    return ", ".join(f"{name} {kinds[name]}" for name in names)
