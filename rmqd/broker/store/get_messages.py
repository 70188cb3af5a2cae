"""The messages of a queue that one pull returns: start offset, limits and filter."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from enum import StrEnum
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from rmqd.broker.store.consume_queue import ConsumeQueue
from rmqd.broker.store.record_log import RecordLog

MAX_SCANNED: Final = 800  # Java: maxFilterMessageSize 16000 bytes of entries of 20


class GetMessageStatus(StrEnum):
    """The outcome of a read. The name is the remark of the response to a pull."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_RESET = "OFFSET_RESET"


class MessageFilter(Protocol):
    """The filter of a pull."""

    def matches_code(self, tags_code: int) -> bool:
        """Return whether a message with this tag hash may pass. This is checked first."""

    def matches_record(self, record: bytes) -> bool:
        """Return whether a message passes by its properties. This is checked if the tag's hash may pass."""


class TransferLimits(NamedTuple):
    """The limits of one read. A single larger message is returned anyway."""

    messages: int
    size: int


class GetResult(NamedTuple):
    """The result of a read, and the offset of the next one."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: list[bytes]


def get_messages(
    log: RecordLog,
    queue: ConsumeQueue | None,
    offset: int,
    max_nums: int,
    wanted: MessageFilter | None,
    limits: TransferLimits,
) -> GetResult:
    """Read from `offset` up to the limits of one response. `queue` is None if it never had a message."""
    if queue is None:
        return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [])
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, [])
    if offset < low:
        return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high, [])
    if offset == high:
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [])
    if offset > high:
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [])
    if queue.has_batches:
        records, following = _read_batches(log, queue, offset, max_nums, wanted, limits)
    elif wanted is None:
        records = _read(log, *queue.records(offset, max(1, min(max_nums, limits.messages))), limits.size)
        return GetResult(GetMessageStatus.FOUND, offset + len(records), low, high, records)
    else:
        records, following = _read_wanted(log, queue, offset, max_nums, wanted, limits)
    status = GetMessageStatus.FOUND if records else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetResult(status, following, low, high, records)


def _read(log: RecordLog, offsets: array[int], sizes: array[int], most_bytes: int) -> list[bytes]:
    if sum(sizes) > most_bytes:
        fitting = bisect_right(list(accumulate(sizes)), most_bytes)
        del offsets[max(1, fitting) :]
    return log.read_many(offsets)


def _read_wanted(
    log: RecordLog, queue: ConsumeQueue, offset: int, max_nums: int, wanted: MessageFilter, limits: TransferLimits
) -> tuple[list[bytes], int]:
    """Return the records that pass, and the offset to continue at. As in Java, limits count before the filter."""
    records: list[bytes] = []
    bytes_left, most, read = limits.size, min(max_nums, limits.messages), log.read
    for at, size, tags_code in queue.tagged_records(offset, max(MAX_SCANNED, max_nums)):
        if records and (len(records) >= most or size > bytes_left):
            break
        offset += 1
        if wanted.matches_code(tags_code):
            record = read(at)
            if record is not None and wanted.matches_record(record):
                records.append(record)
                bytes_left -= size
    return records, offset


def _read_batches(
    log: RecordLog,
    queue: ConsumeQueue,
    offset: int,
    max_nums: int,
    wanted: MessageFilter | None,
    limits: TransferLimits,
) -> tuple[list[bytes], int]:
    """Like `_read_wanted` for records that may be batches. They are read as a whole, even if `offset` is inside one.

    A batch that would exceed the requested number waits for the next read, unless it is the first.
    """
    records: list[bytes] = []
    members, size, following = 0, 0, offset
    for batch in queue.batches(offset):
        count = batch.following - batch.offset
        full = members + count > max_nums or members >= limits.messages or size + batch.size > limits.size
        if (records and full) or batch.offset - offset >= max(MAX_SCANNED, max_nums):
            break
        following = batch.following
        if wanted is not None and not wanted.matches_code(batch.tags_code):
            continue
        record = log.read(batch.commit_log_offset)
        if record is not None and (wanted is None or wanted.matches_record(record)):
            records.append(record)
            members, size = members + count, size + batch.size
    return records, following
