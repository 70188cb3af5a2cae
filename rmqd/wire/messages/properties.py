r"""A message's properties (`key \x01 value \x02`, repeated, in one string), and the bits of the two `sysFlag` fields.

The bits are plain integers, because they are tested for every message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final

from rmqd.errors import InvalidMessageError, ProtocolError

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
UNIQ_KEY: Final = "UNIQ_KEY"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
CLUSTER: Final = "CLUSTER"
PRODUCER_GROUP: Final = "PGROUP"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
SHARDING_KEY: Final = "__SHARDINGKEY"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
LITE_TOPIC: Final = "__LITE_TOPIC"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"

# Properties that brokers and clients set for their own use. In a copy of a message they would delay it again, or name
# another message. KEYS, TAGS and the sharding key are not among them, so a copy keeps them.
SET_BY_ROCKETMQ: Final = frozenset(
    "WAIT DELAY RETRY_TOPIC ORIGIN_MESSAGE_ID ORIGIN_GROUP RECONSUME_TIME MAX_RECONSUME_TIMES REAL_TOPIC REAL_QID "
    "UNIQ_KEY MIN_OFFSET MAX_OFFSET CONSUME_START_TIME MSG_REGION TRACE_ON CLUSTER POP_CK 1ST_POP_TIME PGROUP TRAN_MSG "
    "__transactionId__ INSTANCE_ID TIMER_DELIVER_MS TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_OUT_MS TIMER_ENQUEUE_MS "
    "TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_DEL_UNIQKEY INNER_NUM INNER_BASE INNER_MULTI_DISPATCH "
    "INNER_MULTI_QUEUE_OFFSET DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID".split()
)

_NAMED: Final = {"keys": KEYS, "sharding_key": SHARDING_KEY}


def value_reader(name: str) -> Callable[[Any], str | None]:
    """Return the function for a message's `msg_id`, `keys` or `sharding_key`, or, with `property:NAME`, a property.

    The function returns None or "" if the message has no such value, or only white space. If a message has several keys
    (RocketMQ separates them by spaces), the whole text is one value here.
    """
    if name == "msg_id":
        return attrgetter("id_of_all_copies")
    stored = _NAMED.get(name) or name.removeprefix("property:")

    def value(message: Any) -> str | None:
        text: str | None = message.stored_properties.get(stored)
        return None if text is None or text.isspace() else text

    return value


MAX_PROPERTIES_BYTES: Final = 32767  # the record's length field is a signed short
KEY_END: Final = "\x01"
ENTRY_END: Final = "\x02"
_SEPARATORS: Final = {KEY_END, ENTRY_END}


def parse_properties(data: str | bytes) -> dict[str, str]:
    """Read a properties string. Like Java, drop entries without key or value. The last of two equal keys wins."""
    if isinstance(data, bytes):
        try:
            data = data.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"the properties of a message are not UTF-8: {error}") from error
    properties = {}
    for entry in data.split(ENTRY_END):
        key, _, value = entry.partition(KEY_END)
        if key and value:
            properties[key] = value
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """Write a properties string. Empty values are omitted, because readers ignore them.

    Raises InvalidMessageError if a property contains a separator or has no name.
    """
    parts = [f"{key}{KEY_END}{value}{ENTRY_END}" for key, value in properties.items() if value]
    text = "".join(parts)
    # a separator inside a name or a value makes the counts too high
    if text.count(KEY_END) == text.count(ENTRY_END) == len(parts) and "" not in properties:
        return text
    key, value = next(entry for entry in properties.items() if not entry[0] or _SEPARATORS & set("".join(entry)))
    raise InvalidMessageError(
        f"property {key!r}={value!r}: the name must not be empty, and neither name nor value may contain "
        "the characters U+0001 and U+0002, which RocketMQ uses as separators"
    )


# a stored message's sysFlag
COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_MASK: Final = 0xC
PREPARED_TRANSACTION: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_MASK: Final = 0x700
COMPRESSION_SHIFT: Final = 8
KNOWN_FLAGS: Final = 0x7FF  # the sum of the bits above
ENCODED_FLAGS: Final = COMPRESSED | NEED_UNWRAP  # the stored body must be opened before a handler sees it


class CompressionType(IntEnum):
    """The three bits of a message's sysFlag that name its compression."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


class PullSysFlag:
    """The bits of a pull request."""

    COMMIT_OFFSET: Final = 0x1
    """Store `commitOffset` for the group, whether or not the pull finds messages."""
    SUSPEND: Final = 0x2
    """Hold the request until a message arrives (long polling)."""
    SUBSCRIPTION: Final = 0x4
    """The request contains the expression, so no heartbeat is needed."""
    LITE_PULL: Final = 0x10
