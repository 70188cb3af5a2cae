"""The columns that the source has: names, SQL types, and what they hold. Pure: imports neither pyspark nor pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rmqd.errors import ConfigError
from rmqd.spark.option_values import meant_or_all

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
PERMISSIVE_COLUMNS: Final = (*DEFAULT_COLUMNS, "decode_error")


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


def names_of_schema(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The columns that a reader asks for by `schema()`: names, and types as SQL writes them.

    Raises ConfigError with a line for each that the source does not have.
    """
    problems: list[object] = []
    names = [name for name, _ in fields]
    for name, kind in fields:
        if name not in COLUMNS:
            problems.append(f"schema: {name} is no column; {meant_or_all(name, tuple(COLUMNS))}")
        elif kind != COLUMNS[name][0]:
            problems.append(f"schema: {name} is {kind}; accepted: {COLUMNS[name][0]}, and a cast of what is read")
        elif names.count(name) > 1:
            problems.append(f"schema: {name} is there more than once")
    if problems:
        raise ConfigError(problems)
    return tuple(names)


def ddl(names: Iterable[str]) -> str:
    """The schema as SQL writes it."""
    return ", ".join(f"{name} {COLUMNS[name][0]}" for name in names)
