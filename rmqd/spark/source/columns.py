"""The columns that the source has: names, SQL types, and what they hold. Pure: imports neither pyspark nor pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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


def ddl(names: Iterable[str]) -> str:
    """The schema as SQL writes it."""
    return ", ".join(f"{name} {COLUMNS[name][0]}" for name in names)
