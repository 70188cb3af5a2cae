"""The columns that the source has: names, SQL types, and what they hold. Pure: imports neither pyspark nor pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rmqd.errors import ConfigError
from rmqd.spark.option_values import meant_or_all
from rmqd.spark.values.value_format import BAD_ROW, VALUE, ValueFormat

# name: (SQL type, what it holds)
COLUMNS: Final = {
    "topic": ("string", "the topic; of a retried message the one that it was first sent to"),
    "broker": ("string", "the broker that it was read from"),
    "queue_id": ("int", "the queue that it was read from"),
    "queue_offset": ("bigint", "its place in the queue"),
    "msg_id": ("string", "the producer's unique id, or the offset id where there is none"),
    "offset_msg_id": ("string", "the id made of the storing broker's address and the commit log offset"),
    "keys": ("string", "its keys, separated by spaces"),
    "tags": ("string", "its tag"),
    "body": ("binary", "the body, decompressed"),
    "properties": ("map<string,string>", "system and user properties"),
    "flag": ("int", "the producer's flag"),
    "sys_flag": ("int", "RocketMQ's system flags"),
    "born_timestamp": ("timestamp", "when its producer made it"),
    "store_timestamp": ("timestamp", "when the broker stored it"),
    "born_host": ("string", "the producer's `ip:port`"),
    "store_host": ("string", "the storing broker's `ip:port`"),
    "reconsume_times": ("int", "how often it was sent back"),
    "sharding_key": ("string", "by what its producer chose the queue"),
    "commit_log_offset": ("bigint", "where the broker stores it"),
    "store_size": ("int", "bytes that it takes in the broker's commit log"),
    "source_topic": ("string", "the topic that it was read from: a group's retry topic, for a retried message"),
    "decode_error": ("string", "with `mode` PERMISSIVE: why a corrupt message has no body"),
}
DEFAULT_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("source_topic", "decode_error"))
"""Of a group's pipeline, which decodes those that it uses."""
READ_COLUMNS: Final = ("keys", "body", "topic", "queue_id", "queue_offset", "store_timestamp", "tags")
"""Of `load()`: those of Kafka's source, and the tag. Spark does not tell a source which ones a query uses."""
PERMISSIVE_COLUMNS: Final = (*DEFAULT_COLUMNS, "decode_error")
# beside them with the option `value`
VALUE_COLUMNS: Final = {
    VALUE: ("struct", "the decoded body, of the fields that its schema has; null where it does not fit"),
    BAD_ROW: ("string", "why the body does not fit its schema; null where it does"),
}


@dataclass(frozen=True, slots=True)
class Decoding:
    """What an executor makes of messages: which columns, and how strictly it reads. Pickles."""

    columns: tuple[str, ...]
    used: frozenset[str] | None = None
    """Those that are decoded, the others being null; None for all."""
    permissive: bool = False
    """Whether a corrupt message becomes a row without a body, in place of an error."""
    check_crc: bool = True
    """Whether a message is corrupt whose body does not match the CRC that is stored with it."""
    value: ValueFormat | None = None
    """How bodies become a column of their own, if they do."""

    @property
    def has_values(self) -> bool:
        """Whether bodies have to be decoded for the columns."""
        return self.value is not None and not VALUE_COLUMNS.keys().isdisjoint(self.columns)


def names_of_schema(fields: Sequence[tuple[str, str]], value: ValueFormat | None = None) -> tuple[str, ...]:
    """The columns that a reader asks for by `schema()`: names, and types as SQL writes them.

    Raises ConfigError with a line for each that the source does not have, and for a type of bodies that is not theirs.
    """
    problems: list[object] = []
    names = [name for name, _ in fields]
    known = (*COLUMNS, *(VALUE_COLUMNS if value is not None else ()))
    for name, kind in fields:
        if name not in known:
            problems.append(f"schema: {name} is no column; {meant_or_all(name, known)}")
        elif name == VALUE and value is not None:
            problems += value.problems_with(kind)
        elif name != BAD_ROW and kind != COLUMNS[name][0]:
            problems.append(f"schema: {name} is {kind}; accepted: {COLUMNS[name][0]}, and a cast of what is read")
        elif names.count(name) > 1:
            problems.append(f"schema: {name} is there more than once")
    if problems:
        raise ConfigError(problems)
    return tuple(names)


def ddl(names: Iterable[str], value: ValueFormat | None = None) -> str:
    """The schema as SQL writes it. Raises ConfigError where the type of bodies is not known."""
    kinds = {name: kind for name, (kind, _) in COLUMNS.items()}
    if value is not None:
        kinds |= {VALUE: value.sql, BAD_ROW: "string"}
    return ", ".join(f"{name} {kinds[name]}" for name in names)
