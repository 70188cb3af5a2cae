"""Message trace: records of who sent and handled a message, as `mqadmin queryMsgTraceById` and dashboards read them.

A trace message carries many records, and in its KEYS the ids and keys of all messages that they are about, by which it
is found. Layout: `TraceDataEncoder.java`; a record is its fields, each but the last followed by 0x01, and 0x02.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

TRACE_PRODUCER_PREFIX: Final = "_INNER_TRACE_PRODUCER"
MAX_TRACE_BODY_BYTES: Final = 128_000  # Java: AsyncTraceDispatcher.maxMsgSize
# KEYS is one of the message's properties, which together have 32,767 bytes
MAX_TRACE_KEYS_BYTES: Final = 30_000

_FIELD_END: Final = "\x01"
_RECORD_END: Final = "\x02"
_ABSENT: Final = "null"  # how Java writes a value that is not there, and how its readers show it
_SEPARATOR: Final = " "  # of keys


class ContextCode(IntEnum):
    """How a handler call ended (`ConsumeReturnType.java`)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class TraceMessageType(IntEnum):
    """What kind of message was sent (`MessageType.java`)."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


@dataclass(frozen=True, slots=True)
class TracePart:
    """The records about one message; a trace message has all of them."""

    records: str
    msg_id: str
    keys: str | None
    """The message's own keys, separated by spaces."""


@dataclass(frozen=True, slots=True)
class TraceData:
    """What one trace message carries. `count` is how many records."""

    body: bytes
    keys: str
    count: int


def pub_record(
    *,
    timestamp_ms: int,
    region: str | None,
    group: str,
    topic: str,
    msg_id: str,
    tags: str | None,
    keys: str | None,
    store_host: str,
    body_length: int,
    cost_ms: int,
    message_type: TraceMessageType,
    offset_msg_id: str,
    success: bool,
) -> str:
    """A message was sent by a producer of `group` to the broker at `store_host`, in `cost_ms`."""
    return _record(
        "Pub", timestamp_ms, region, group, topic, msg_id, tags, keys, store_host, body_length, cost_ms,
        int(message_type), offset_msg_id, success,
    )  # fmt: skip


def sub_before_record(
    *,
    timestamp_ms: int,
    region: str | None,
    group: str,
    request_id: str,
    msg_id: str,
    retry_times: int,
    keys: str | None,
) -> str:
    """A handler of `group` gets the message; `request_id` is the handler call's, and its SubAfter's."""
    return _record("SubBefore", timestamp_ms, region, group, request_id, msg_id, retry_times, keys)


def sub_after_record(
    *,
    request_id: str,
    msg_id: str,
    cost_ms: int,
    success: bool,
    keys: str | None,
    code: ContextCode,
    timestamp_ms: int,
    group: str,
) -> str:
    """The handler is done with the message; `cost_ms` is the call's time divided by its messages."""
    return _record("SubAfter", request_id, msg_id, cost_ms, success, keys, int(code), timestamp_ms, group)


def trace_messages(parts: Iterable[TracePart]) -> Iterator[TraceData]:
    """What to send for these parts: one trace message, or several where one would be too long or have too many keys."""
    records: list[str] = []
    names: dict[str, None] = {}
    body_size = keys_size = count = 0
    for part in parts:
        own = [part.msg_id, *(part.keys.split() if part.keys else ())]
        size = _size(part.records)
        own_size = sum(_size(name) + 1 for name in own if name not in names)
        is_full = body_size + size > MAX_TRACE_BODY_BYTES or keys_size + own_size > MAX_TRACE_KEYS_BYTES
        if records and is_full:
            yield TraceData("".join(records).encode(), _SEPARATOR.join(names), count)
            records, names, body_size, keys_size, count = [], {}, 0, 0, 0
            own_size = sum(_size(name) + 1 for name in own)
        records.append(part.records)
        names.update(dict.fromkeys(own))
        body_size += size
        keys_size += own_size
        count += part.records.count(_RECORD_END)
    if records:
        yield TraceData("".join(records).encode(), _SEPARATOR.join(names), count)


def _record(*fields: object) -> str:
    return _FIELD_END.join([_text(field) for field in fields]) + _RECORD_END


def _text(field: object) -> str:
    if isinstance(field, bool):
        return "true" if field else "false"
    return _ABSENT if field is None or field == "" else str(field)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
