"""Message trace: records of sent and handled messages, for `mqadmin queryMsgTraceById` and dashboards.

A trace message contains many records. Its KEYS are the ids and keys of all recorded messages, so that a search finds
it. Layout (`TraceDataEncoder.java`): 0x01 separates the fields of a record, and 0x02 ends the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

TRACE_PRODUCER_PREFIX: Final = "_INNER_TRACE_PRODUCER"
MAX_TRACE_BODY_BYTES: Final = 128_000  # Java: AsyncTraceDispatcher.maxMsgSize
# KEYS is a property, and all properties of a message together may have 32,767 bytes
MAX_TRACE_KEYS_BYTES: Final = 30_000

_RECORD_END: Final = "\x02"
_ABSENT: Final = "null"  # Java's text for a missing value
_SEPARATOR: Final = " "  # separates the keys in KEYS


class ContextCode(IntEnum):
    """The result of a handler call (`ConsumeReturnType.java`)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class TraceMessageType(IntEnum):
    """The kind of a sent message (`MessageType.java`)."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


@dataclass(frozen=True, slots=True)
class TracePart:
    """The trace records about one message. They are always sent in the same trace message."""

    records: str
    msg_id: str
    keys: str | None
    """The keys of the recorded message, separated by spaces; None if it has no keys."""


@dataclass(frozen=True, slots=True)
class TraceData:
    """The content of one trace message. `count` is the number of records."""

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
    """Return the record of a send: a producer of `group` sent to the broker at `store_host`, within `cost_ms`."""
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
    """Return the record of a handler call that begins. `request_id` links it to the call's SubAfter record."""
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
    """Return the record of a handler call that ended. `cost_ms` is its duration divided by the number of messages."""
    return (
        f"SubAfter\x01{request_id}\x01{msg_id}\x01{cost_ms}\x01{'true' if success else 'false'}\x01"
        f"{keys or _ABSENT}\x01{code:d}\x01{timestamp_ms}\x01{group}\x02"
    )


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One parsed record: a send, or the start or end of a handler call. `at_ms` is in milliseconds since 1970."""

    kind: str
    """`sent` (Pub), `begun` (SubBefore) or `handled` (SubAfter)."""
    msg_id: str
    at_ms: int
    group: str
    """The group of the producer or consumer; empty if an old client wrote the record."""
    result: str = ""
    cost_ms: int | None = None
    request_id: str = ""
    """The id of the handler call; empty for a send."""
    attempt: int | None = None
    client: str = ""
    """The host that sent the record."""


def trace_events(body: bytes) -> Iterator[TraceEvent]:
    """Yield the records in the body of a trace message. Records that cannot be parsed are skipped."""
    for record in body.decode(errors="replace").split(_RECORD_END):
        fields = record.split("\x01")
        try:
            match fields[0]:
                case "Pub":
                    result = "success" if fields[-1] == "true" else "failed"
                    yield TraceEvent("sent", fields[5], int(fields[1]), fields[3], result, int(fields[10]))
                case "SubBefore":
                    attempt = int(fields[6]) + 1
                    yield TraceEvent("begun", fields[5], int(fields[1]), fields[3], "", None, fields[4], attempt)
                case "SubAfter":
                    result = "success" if fields[4] == "true" else "failed"
                    if len(fields) > 6:
                        result = ContextCode(int(fields[6])).name.lower()
                    at_ms, group = (int(fields[7]), fields[8]) if len(fields) > 8 else (0, "")
                    yield TraceEvent("handled", fields[2], at_ms, group, result, int(fields[3]), fields[1])
        except (IndexError, ValueError):
            continue


def trace_messages(parts: Sequence[TracePart]) -> Iterator[TraceData]:
    """Yield trace messages that contain `parts`: one, or several if one would be too long or have too many keys."""
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
