r"""A message's properties (one string: `key \x01 value \x02`, repeated), and the bits of the two `sysFlag` fields.

The bits are plain integers, which are faster than an enum, because they are tested for every message.
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

# Properties that brokers and clients set for their own use. rmqd omits them when it sends a copy of a message, because
# they would delay the copy again, or identify another message. A copy keeps KEYS, TAGS and the sharding key.
SET_BY_ROCKETMQ: Final = frozenset(
    "WAIT DELAY RETRY_TOPIC ORIGIN_MESSAGE_ID ORIGIN_GROUP RECONSUME_TIME MAX_RECONSUME_TIMES REAL_TOPIC REAL_QID "
    "UNIQ_KEY MIN_OFFSET MAX_OFFSET CONSUME_START_TIME MSG_REGION TRACE_ON CLUSTER POP_CK 1ST_POP_TIME PGROUP TRAN_MSG "
    "__transactionId__ INSTANCE_ID TIMER_DELIVER_MS TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_OUT_MS TIMER_ENQUEUE_MS "
    "TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_DEL_UNIQKEY INNER_NUM INNER_BASE INNER_MULTI_DISPATCH "
    "INNER_MULTI_QUEUE_OFFSET DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID".split()
)

_NAMED: Final = {"keys": KEYS, "sharding_key": SHARDING_KEY}


def value_reader(name: str) -> Callable[[Any], str | None]:
    """Return a function that reads one value of a message: `msg_id`, `keys`, `sharding_key` or `property:NAME`.

    The function returns None or "" if the message has no such value, or a value of white space only. Several keys,
    which RocketMQ separates by spaces, are returned as one text.
    """
    if name == "msg_id":
        return attrgetter("first_copy_id")
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
    """Parse a properties string. As in Java, entries without key or value are dropped, and the last equal key wins."""
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
    """Return the properties string. Properties with an empty value are omitted, because readers ignore them.

    Raises InvalidMessageError if a property contains a separator or has no name.
    """
    parts = [f"{key}{KEY_END}{value}{ENTRY_END}" for key, value in properties.items() if value]
    text = "".join(parts)
    # a separator inside a name or value would make one of the counts exceed the number of properties
    if text.count(KEY_END) == text.count(ENTRY_END) == len(parts) and "" not in properties:
        return text
    key, value = next(entry for entry in properties.items() if not entry[0] or _SEPARATORS & set("".join(entry)))
    raise InvalidMessageError(
        f"property {key!r}={value!r} is not valid; expected a name that is not empty, "
        "and neither U+0001 nor U+0002, which are RocketMQ's separators"
    )


# bits of the sysFlag of a stored message
COMPRESSED: Final = 0x1
TRANSACTION_MASK: Final = 0xC
TRANSACTION_COMMIT: Final = 0x8
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_MASK: Final = 0x700
COMPRESSION_SHIFT: Final = 8
KNOWN_FLAGS: Final = 0x7FF  # the bits above, and 0x2 for several tags
ENCODED_FLAGS: Final = COMPRESSED | NEED_UNWRAP  # the body must be decompressed, or split as a batch


class CompressionType(IntEnum):
    """The compression of a message's body: the value of the bits COMPRESSION_MASK in its sysFlag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


class PullSysFlag:
    """The bits of the sysFlag of a pull request."""

    COMMIT_OFFSET: Final = 0x1
    """The broker commits the request's `commitOffset` for the group, even if the pull finds no messages."""
    SUSPEND: Final = 0x2
    """The broker holds the request until a message arrives or the suspend timeout ends (long polling)."""
    SUBSCRIPTION: Final = 0x4
    """The request contains the filter expression, so the broker needs no heartbeat with the subscription."""
