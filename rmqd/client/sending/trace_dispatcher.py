"""Sending of message trace in the background, in batches. Records that cannot be sent are dropped and counted."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from rmqd.client.api.send_requests import SendResult
from rmqd.client.client_options import TraceOptions
from rmqd.client.routing.route_table import RouteTable
from rmqd.client.sending.outgoing_message import MessageQueueSelector, OutgoingMessage
from rmqd.client.sending.producer import Producer
from rmqd.codes import ResponseCode
from rmqd.errors import RmqdError
from rmqd.runtime.clock import Clock
from rmqd.runtime.plain_text import duration
from rmqd.wire.topics import INNER_PRODUCER_GROUP, unwrap_namespace
from rmqd.wire.trace import TRACE_PRODUCER_PREFIX, TraceData, TraceMessageType, TracePart, pub_record, trace_messages

log = structlog.get_logger(__name__)

MAX_WAITING_CHARACTERS: Final = 8_000_000  # total length of all waiting records; Java: 2048 records of any length
FLUSH_SECONDS: Final = 5.0  # Java: flushTraceInterval
POLL_SECONDS: Final = 0.1  # interval of checks for full batches; `append` wakes no task, because it runs in any thread
MAX_SENDS_IN_FLIGHT: Final = 16  # trace messages in flight at once
SEND_TIMEOUT_SECONDS: Final = 5.0
PAUSE_AFTER_FAILURE_SECONDS: Final = 5.0  # without this pause, a missing trace topic would cause constant requests
CLOSE_SECONDS: Final = 3.0
REPORT_SECONDS: Final = 60.0

TRACE_RESULTS: Final = ("sent", "full", "failed")
"""The results of a record: sent; dropped because too many records wait; dropped because it could not be sent."""


class TraceDispatcher:
    """The sender of a group's trace records to the trace topic. `append` and `drop` may be called in any thread."""

    def __init__(self, producer: Producer, options: TraceOptions, producer_group: str, clock: Clock) -> None:
        self.counts = dict.fromkeys(TRACE_RESULTS, 0)
        """The number of records so far, by result (`TRACE_RESULTS`)."""
        self.failure = ""
        """The error of the last failed send; empty if no send failed."""
        self.before_flush: Callable[[], object] = lambda: None
        """Called before all waiting records are sent, every 5 s and at the end. It may append records."""
        self._producer = producer
        self._options = options
        self._group = producer_group
        self._clock = clock
        self._waiting: deque[tuple[TracePart, ...]] = deque()
        self._characters = 0
        self._lock = threading.Lock()
        self._may_send_at = 0.0
        self._report_at = 0.0
        self._unreported = 0

    @property
    def is_full(self) -> bool:
        """Whether so many records wait that `append` would drop further records."""
        return self._characters >= MAX_WAITING_CHARACTERS

    def append(self, parts: tuple[TracePart, ...], records: int) -> None:
        """Add the records of one handler call, or of one sent message. They are dropped if `is_full`."""
        with self._lock:
            if not self.is_full:
                self._characters += _characters(parts)
                self._waiting.append(parts)
                return
        self.drop(records)

    def drop(self, records: int) -> None:
        """Count records as dropped. While `is_full` is True, callers call this instead of creating records."""
        self._lose("full", records)

    async def run(self) -> None:
        """Send full batches soon, and all waiting records every 5 s. Runs until cancelled; `close` sends the rest."""
        flush_at = self._clock.monotonic() + FLUSH_SECONDS
        while True:
            await self._clock.sleep(POLL_SECONDS)
            now = self._clock.monotonic()
            least = self._options.calls
            if now >= flush_at:
                self.before_flush()
                flush_at, least = now + FLUSH_SECONDS, 1
            if len(self._waiting) >= least and now >= self._may_send_at:
                await self._send_waiting(least)
            self._report(now, "trace records are created faster than they are sent")

    async def close(self) -> None:
        """Send the waiting records, and drop the records that could not be sent within 3 s."""
        self.before_flush()
        self._may_send_at = 0.0
        try:
            async with self._clock.timeout(CLOSE_SECONDS):
                await self._send_waiting(1)
        except TimeoutError:
            pass
        left = [part for parts in self._take(len(self._waiting)) for part in parts]
        self._lose("failed", sum(data.count for data in trace_messages(left)))
        self._report_at = 0.0
        reason = self.failure or f"the last records were not sent within {duration(CLOSE_SECONDS)}"
        self._report(self._clock.monotonic(), reason)

    async def _send_waiting(self, least: int) -> None:
        """Send the waiting records in batches. If the last batch has records of fewer than `least` calls, it waits."""
        calls = self._options.calls
        batches = -(-(len(self._waiting) - least + 1) // calls)
        turns = iter(range(batches))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(MAX_SENDS_IN_FLIGHT, batches)):
                tasks.create_task(self._sender(turns), name="trace sender")

    async def _sender(self, turns: Iterator[int]) -> None:
        for _ in turns:
            if self._clock.monotonic() < self._may_send_at:
                return
            taken = self._take(self._options.calls)
            try:
                for data in trace_messages([part for parts in taken for part in parts]):
                    await self._send(data)
            except asyncio.CancelledError:
                with self._lock:  # they may be stored, but sending records twice is better than losing them
                    self._waiting.extendleft(reversed(taken))
                    self._characters += sum(map(_characters, taken))
                raise

    def _take(self, most: int) -> Sequence[tuple[TracePart, ...]]:
        with self._lock:
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._characters -= sum(map(_characters, taken))
        return taken

    async def _send(self, data: TraceData) -> None:
        message = OutgoingMessage(self._options.topic, data.body, keys=data.keys)
        try:
            await self._producer.send(message, producer_group=self._group, timeout_seconds=SEND_TIMEOUT_SECONDS)
        except RmqdError as error:
            now = self._clock.monotonic()
            self._may_send_at = now + PAUSE_AFTER_FAILURE_SECONDS
            self.failure = str(error)
            self._lose("failed", data.count)
            self._report(now, self.failure)
        else:
            self.counts["sent"] += data.count

    def _lose(self, result: str, records: int) -> None:
        with self._lock:
            self.counts[result] += records
            self._unreported += records

    def _report(self, now: float, reason: str) -> None:
        """Log dropped records, at most once a minute."""
        if not self._unreported or now < self._report_at:
            return
        self._report_at = now + REPORT_SECONDS
        with self._lock:
            records, self._unreported = self._unreported, 0
        log.warning("trace.dropped", topic=self._options.topic, records=records, reason=reason)


def _characters(parts: tuple[TracePart, ...]) -> int:
    return sum([len(part.records) for part in parts])


class TracedProducer:
    """A producer whose sends are traced. The caller must run the `dispatcher`, and close it at the end."""

    def __init__(
        self, producer: Producer, routes: RouteTable, options: TraceOptions, clock: Clock, *, namespace: str
    ) -> None:
        group = f"{TRACE_PRODUCER_PREFIX}-{INNER_PRODUCER_GROUP}-PRODUCE-1"
        self.dispatcher = TraceDispatcher(producer, options, group, clock)
        self._producer = producer
        self._routes = routes
        self._namespace = namespace
        self._clock = clock

    async def send(self, message: OutgoingMessage, *, selector: MessageQueueSelector | None = None) -> SendResult:
        """Send a message like `Producer.send`. Also write its trace record, unless the broker has disabled trace."""
        began, began_ms = self._clock.monotonic(), int(self._clock.wall() * 1000)
        result = await self._producer.send(message, selector=selector)
        if result.is_traced:
            record = pub_record(
                timestamp_ms=began_ms,
                region=result.region,
                group=INNER_PRODUCER_GROUP,
                topic=unwrap_namespace(message.topic, self._namespace),
                msg_id=result.msg_id,
                tags=message.tags,
                keys=message.keys,
                store_host=self._routes.master(result.queue.broker_name) or result.queue.broker_name,
                body_length=len(message.body),
                cost_ms=int((self._clock.monotonic() - began) * 1000),
                message_type=_type_of(message),
                offset_msg_id=result.offset_msg_id,
                success=result.status == ResponseCode.SUCCESS,
            )
            self.dispatcher.append((TracePart(record, result.msg_id, message.keys),), 1)
        return result


def _type_of(message: OutgoingMessage) -> TraceMessageType:
    """Return the type that Java's producer would write. As in Java, an ordered message has the type NORMAL."""
    return TraceMessageType.DELAY if message.delay_level or message.needs_timer else TraceMessageType.NORMAL
