"""Message trace: records of who sent and handled a message, as `mqadmin queryMsgTraceById` and dashboards read them.

A trace message carries many records, and in its KEYS the ids and keys of all messages that they are about, by which it
is found. Layout: `TraceDataEncoder.java`; a record is its fields, each but the last followed by 0x01, and 0x02.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

TRACE_PRODUCER_PREFIX: Final = "_INNER_TRACE_PRODUCER"
MAX_TRACE_BODY_BYTES: Final = 128_000  # Java: AsyncTraceDispatcher.maxMsgSize
# KEYS is one of the message's properties, which together have 32,767 bytes
MAX_TRACE_KEYS_BYTES: Final = 30_000

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
    return (
        f"Pub\x01{timestamp_ms}\x01{region or _ABSENT}\x01{group}\x01{topic}\x01{msg_id}\x01{tags or _ABSENT}\x01"
        f"{keys or _ABSENT}\x01{store_host}\x01{body_length}\x01{cost_ms}\x01{message_type:d}\x01{offset_msg_id}\x01"
        f"{'true' if success else 'false'}\x02"
    )


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
    return (
        f"SubBefore\x01{timestamp_ms}\x01{region or _ABSENT}\x01{group}\x01{request_id}\x01{msg_id}\x01"
        f"{retry_times}\x01{keys or _ABSENT}\x02"
    )


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
    return (
        f"SubAfter\x01{request_id}\x01{msg_id}\x01{cost_ms}\x01{'true' if success else 'false'}\x01"
        f"{keys or _ABSENT}\x01{code:d}\x01{timestamp_ms}\x01{group}\x02"
    )


def trace_messages(parts: Sequence[TracePart]) -> Iterator[TraceData]:
    """What to send for these parts: one trace message, or several where one would be too long or have too many keys."""
    if not parts:
        return
    records = "".join([part.records for part in parts])
    names: dict[str, None] = {}
    for part in parts:
        names[part.msg_id] = None
        if part.keys:
            names.update(dict.fromkeys(part.keys.split()))
    data = TraceData(records.encode(), _SEPARATOR.join(names), records.count(_RECORD_END))
    fits = len(data.body) <= MAX_TRACE_BODY_BYTES and len(data.keys.encode()) <= MAX_TRACE_KEYS_BYTES
    if fits or len(parts) == 1:
        yield data
    else:
        middle = len(parts) // 2
        yield from trace_messages(parts[:middle])
        yield from trace_messages(parts[middle:])
