"""Validates the responses to a queue's pulls: which messages exist, and the next offset.

If a response omits messages, the next commit passes them, and they are lost. So a bit flipped in transit must not hide
messages. A response is trusted up to the first point where it contradicts itself or the pull (`ResponseWalk`). From
that point the queue is pulled again, at the broker's master, because damage in transit does not repeat. If two
consecutive responses agree, they are trusted:

- *A record is bad*: both responses have the same bytes at the same offset. Bad records may be most of a response, and
  large once decompressed. So all of them are recorded in the first response, and the second one confirms all of them.
- *There is a gap*: both responses have no message there. Without a filter few queues have gaps, such as compacted ones,
  so each response with gaps costs another pull. With a filter a response continues behind all skipped messages, and
  confirming each such step would double the pulls. A gap is trusted at once if it ends at the queue's end or is as long
  as the step before: brokers scan a fixed number of offsets per pull. A flipped bit is unlikely to produce exactly this
  length.
- *Nothing was found*, and the response has a higher next offset: with a filter, the rule for gaps applies. Without a
  filter, only a hole in the broker's store causes this. The next offset is trusted at once up to the queue's end. Most
  such responses are for idle queues at their end, and there any flipped bit yields an offset beyond the end.

One error remains undetected: in a filtered queue, a record's offset may be wrong and still lie between its neighbours.
The message is then handled and committed at the wrong offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import structlog

from rmqd.client.remoting.pending import TrafficCounters
from rmqd.consumer.consumer_options import OnCorruptMessage
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pull.accept import dead_letter_corrupt, log_corrupt
from rmqd.consumer.pull.pulled_queue import PulledQueue
from rmqd.errors import ProtocolError
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message, MessageBlock
from rmqd.wire.messages.pull_walk import (
    BadRecord,
    Contradiction,
    Gap,
    ResponseWalk,
    needs_no_walk,
    unopened_body_record,
)

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class TrustedPart:
    """The trusted part of a response. The response's block keeps only this part."""

    next_offset: int
    bad: list[BadRecord] = field(default_factory=list)
    """Records that were bad in two responses. If the last record must not be skipped, it is at `next_offset`."""
    contradiction: Contradiction | None = None
    """Why the queue is pulled again at `next_offset`; None if the whole response is trusted."""


class ResponseValidation:
    """Validates the responses to one queue's pulls, in their order."""

    def __init__(self, queue: MessageQueue, traffic: TrafficCounters) -> None:
        self.has_no_filter = True  # whether the group has no filter, so that responses should have no gaps
        self._queue = queue
        self._traffic = traffic
        self._gaps: dict[int, int] = {}  # gaps of the last response as {begin: end}; the next response may confirm them
        self._bad: dict[int, BadRecord] = {}  # bad records by offset; the next response may confirm them
        self._step = 0  # length of the last filtered response that did not end at the queue's end
        self._fruitless = 0  # consecutive contradictory responses without a trusted message

    def batch_limit(self, offset: int, batch_size: int) -> int:
        """Return how many messages to request: one if `offset` has a bad record of unknown length, else `batch_size`.

        A bad length hides all records behind it. The broker knows the right length, so a request for one message
        returns only the bad record.
        """
        bad = self._bad.get(offset)
        return 1 if bad is not None and bad.hides_rest else batch_size

    def forget_responses(self) -> None:
        """Forget earlier responses, because the queue is pulled at another offset from now on."""
        self._gaps = {}
        self._bad = {}
        self._fruitless = 0

    def is_fully_trusted(self, block: MessageBlock, asked: int, header: PullMessageResponseHeader) -> bool:
        """Return whether the whole response is trusted. This fast check suffices for almost all responses."""
        if not needs_no_walk(block, asked, header):
            return False
        if self._gaps:
            self._refute(asked)
        return True

    def validate_found(
        self, block: MessageBlock, asked: int, header: PullMessageResponseHeader, *, passes_over: bool
    ) -> TrustedPart:
        """Validate a response with messages; the block keeps the trusted ones. Raises ProtocolError.

        A confirmed bad record ends the trusted part, unless `passes_over` is True: the policy does not stop at it.
        """
        if self.is_fully_trusted(block, asked, header):  # possible for a block that is not opened yet
            return TrustedPart(header.next_begin_offset)
        if header.next_begin_offset <= asked:
            raise ProtocolError(f"a pull at {asked} found messages, but its next offset is {header.next_begin_offset}")
        walk = ResponseWalk(block, asked, header, takes_all=self.has_no_filter)
        trusted = self._walk(walk, header, passes_over=passes_over)
        block.messages, block.corrupt, block.unfinished = walk.messages, [], len(walk.messages)
        return trusted

    def validate_opened(
        self, block: MessageBlock, asked: int, trusted: TrustedPart, *, passes_over: bool
    ) -> TrustedPart:
        """Validate the trusted messages again after decompression: if that fails, the record's flags may be wrong."""
        if block.first_unopened_offset is not None and block.first_unopened_offset < trusted.next_offset:
            trusted = TrustedPart(
                block.first_unopened_offset,
                [record for record in trusted.bad if record.at < block.first_unopened_offset],
            )
        records = [unopened_body_record(block, corrupt, asked) for corrupt in block.corrupt]
        block.corrupt = []
        proven = list(takewhile(lambda record: passes_over and self._is_known(record), records))
        trusted.bad = sorted([*trusted.bad, *proven], key=lambda record: record.at)
        if len(proven) == len(records):
            return trusted
        first = records[len(proven)]
        block.messages = [message for message in block.messages if message.queue_offset < first.at]
        block.unfinished = len(block.messages)
        bad = [record for record in trusted.bad if record.at < first.at]
        if self._is_known(first):
            return TrustedPart(first.at, [*bad, first])
        self._report(first)
        self._bad.update((record.at, record) for record in records[len(proven) :])
        return TrustedPart(first.at, bad, first)

    def on_progress(self, next_offset: int) -> bool:
        """Called when a response moved the queue to `next_offset`. Return whether bad records wait for confirmation."""
        self._fruitless = 0
        if self._bad:
            self._bad = {at: record for at, record in self._bad.items() if at >= next_offset}
        return bool(self._bad)

    def made_no_progress(self, contradiction: Contradiction) -> None:
        """Called when no part of the last response was trusted. If that happens twice in a row, raise ProtocolError."""
        self._fruitless += 1
        if self._fruitless > 1:
            raise ProtocolError(
                f"the response to a pull at {contradiction.at} is contradictory: {contradiction.reason}"
            )

    def validate_empty(self, asked: int, header: PullMessageResponseHeader) -> int:
        """Validate a response without messages. Return the offset of the next pull. Raises ProtocolError."""
        to = header.next_begin_offset
        if to <= asked:
            return asked
        if to > header.max_offset:
            ends = f"the queue's end at {header.max_offset}"
            raise ProtocolError(f"a pull at {asked} found nothing, but its next offset {to} is beyond {ends}")
        if self.has_no_filter or self._is_usual_step(asked, header):
            return to
        known, self._gaps = self._gaps.get(asked, asked), {asked: to}
        return min(known, to)

    def _walk(self, walk: ResponseWalk, header: PullMessageResponseHeader, *, passes_over: bool) -> TrustedPart:
        asked, bad = walk.offset, list[BadRecord]()
        while (contradiction := walk.advance()) is not None:
            if isinstance(contradiction, Gap):
                is_tail = contradiction.to == header.next_begin_offset
                if not self.has_no_filter and is_tail and walk.messages and self._is_usual_step(asked, header):
                    walk.skip_confirmed_gap(contradiction.to)
                elif (known := self._gaps.get(contradiction.at)) is not None:
                    low, high = contradiction.at, min(known, contradiction.to)
                    if self.has_no_filter:
                        log.info("queue.gap_found", queue=str(self._queue), offset=low, missing=high - low)
                    walk.skip_confirmed_gap(high)
                else:
                    self._gaps = walk.gaps()
                    break
            elif isinstance(contradiction, BadRecord) and self._is_known(contradiction):
                bad.append(contradiction)
                if not passes_over:
                    return TrustedPart(walk.offset, bad)
                walk.skip_bad_record(contradiction)
            else:
                self._report(contradiction)
                if isinstance(contradiction, BadRecord):
                    self._bad[contradiction.at] = contradiction
                break
        return TrustedPart(walk.offset, bad, contradiction)

    def _is_known(self, record: BadRecord) -> bool:
        before = self._bad.get(record.at)
        return before is not None and record.has_same_bytes(before)

    def _is_usual_step(self, asked: int, header: PullMessageResponseHeader) -> bool:
        if header.next_begin_offset == header.max_offset:
            return True
        before, self._step = self._step, header.next_begin_offset - asked
        return before == self._step

    def _report(self, contradiction: Contradiction) -> None:
        self._traffic.doubted_replies += 1
        log.warning("pull.doubted", queue=str(self._queue), offset=contradiction.at, reason=contradiction.reason)

    def _refute(self, offset: int) -> None:
        """Forget the last response's gaps, because the new response has messages in them. Log the gap at `offset`."""
        to = self._gaps.get(offset, offset)
        if to > offset and self.has_no_filter:
            reason = f"offsets {offset} to {to - 1} had no messages before, but have some now"
            self._report(Contradiction(offset, reason))
        self._gaps = {}


class CorruptMessages:
    """Handles the corrupt messages of one queue, as `on_corrupt_message` specifies. The queue's pull loop owns it.

    A message that must be dead-lettered stays in the cache until a broker has accepted it: it is not handed out, and no
    commit passes it. Meanwhile the other messages of its response are handled, but the queue is not pulled. Each
    attempt to dead-letter uses the current policy.
    """

    def __init__(self, loop: PulledQueue, context: GroupContext, message_queue: MessageQueue) -> None:
        self._loop = loop
        self._context = context
        self._message_queue = message_queue
        self.held_records: list[BadRecord] = []
        """Corrupt messages that no broker has accepted as dead letters yet, in the order of offsets."""
        self._reported = frozenset[int]()  # offsets of the last reported records

    @property
    def policy(self) -> OnCorruptMessage:
        """The current `on_corrupt_message`, which a reload may change."""
        return self._context.options.on_corrupt_message

    def hold_records(self, records: Sequence[BadRecord]) -> list[Message]:
        """Hold the corrupt records of a response. Return the messages that the cache must hold in their place."""
        self._report(records)
        if self.policy == "skip" or not records:
            return []
        for record in records:
            # The offset in a corrupt record may be wrong, and would be committed.
            record.message.queue_offset = record.offset
            record.message.finished = False
        held = [record.message for record in records]
        self.held_records.extend(records)
        return held

    async def settle_held(self) -> None:
        """Apply the policy to the held messages until none is left or the queue was reset."""
        process_queue = self._loop.process_queue
        while self.held_records and self._loop.process_queue is process_queue and self._loop.request.reset_to is None:
            record = self.held_records[0]
            if self.policy == "stop":
                await self.wait_at_corrupt(record)
                await self._loop.probe(record.offset)
            elif self.policy == "skip" or await self._dead_letter(record):
                self._loop.stuck = None
                if self.held_records and self.held_records[0] is record:
                    del self.held_records[0]
                    process_queue.finish([record.message])
            else:
                await self._loop.wait_at(record.offset)

    async def wait_at_corrupt(self, record: BadRecord) -> None:
        """Mark the queue as stuck at a corrupt record, and wait PROBE_INTERVAL_SECONDS. The caller checks again."""
        self._report([record])
        evidence = f"message at offset {record.offset} is corrupt: {record.reason}"
        topic = record.message.topic
        self._loop.stuck = self._context.make_problem("corrupt_message", evidence, topic=topic)
        await self._loop.wait_for_operator()

    async def _dead_letter(self, record: BadRecord) -> bool:
        process_queue = self._loop.process_queue
        if await dead_letter_corrupt(self._context.retry_policy, process_queue, record.message, record.reason):
            return True
        evidence = f"the corrupt message at offset {record.offset} cannot be dead-lettered"
        self._loop.stuck = self._context.make_problem("retry_refused", evidence)
        return False

    def _report(self, records: Sequence[BadRecord]) -> None:
        """Count and log each record once, even if it is pulled again or the policy changes."""
        places = frozenset(record.at for record in records)
        for record in records:
            if record.at not in self._reported:
                log_corrupt(self._loop.process_queue, record.message, record.offset, record.reason, self.policy)
        if not places <= self._reported:
            self._reported = places
