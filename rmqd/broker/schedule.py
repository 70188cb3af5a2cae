"""The delivery of delayed messages, by delay level or by timer.

Timer messages wait in `rmq_sys_wheel_timer` until they are due. Java: `ScheduleMessageService`, `TimerMessageStore`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final, NamedTuple, Protocol

import structlog

from rmqd.broker.broker_settings import BrokerSettings, UnknownSettingError
from rmqd.broker.peer_channel import Refusal
from rmqd.broker.store.journal import Journal, JournalKind
from rmqd.broker.store.message_store import MessageStore, PutResult, dropping_damaged
from rmqd.broker.store.queue_store import ConsumeQueue
from rmqd.codes import ResponseCode
from rmqd.errors import ProtocolError, RmqdError
from rmqd.runtime.clock import Clock
from rmqd.wire.fields import parse_integer
from rmqd.wire.messages import properties as names
from rmqd.wire.messages.decode import decode_record
from rmqd.wire.messages.encode import StoredMessage, encode_properties
from rmqd.wire.topics import SCHEDULE_TOPIC, TIMER_TOPIC

PRECISION_MS: Final = 1000  # Java: timerPrecisionMs
REQUESTED: Final = frozenset((names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC))
"""The message properties with which a producer requests a delivery time."""
_QUEUE_ID: Final = 0
_SEPARATOR: Final = "@"


def timer_delivery_ms(properties: Mapping[str, str], now_ms: int, settings: BrokerSettings) -> int | None:
    """Return the last full second before the requested delivery time, in milliseconds since 1970.

    None if the message is due already. `properties` contain one of REQUESTED. Raises Refusal if the delivery time is
    too far ahead or invalid, or if the time of a recall (TIMER_DEL_UNIQKEY) has passed.
    """
    if names.TIMER_OUT_MS in properties:  # the message has been in the timer topic already
        return None
    try:
        if names.TIMER_DELAY_SEC in properties:
            deliver_ms = now_ms + parse_integer(properties[names.TIMER_DELAY_SEC], names.TIMER_DELAY_SEC) * 1000
        elif names.TIMER_DELAY_MS in properties:
            deliver_ms = now_ms + parse_integer(properties[names.TIMER_DELAY_MS], names.TIMER_DELAY_MS)
        else:
            deliver_ms = parse_integer(properties[names.TIMER_DELIVER_MS], names.TIMER_DELIVER_MS)
    except ProtocolError:
        raise _illegal(settings) from None
    if deliver_ms - now_ms > settings.timerMaxDelaySec * 1000:
        raise _illegal(settings)
    if deliver_ms <= now_ms:
        if names.TIMER_DEL_UNIQKEY in properties:
            raise _illegal(settings)
        return None
    return (deliver_ms - 1) // PRECISION_MS * PRECISION_MS


def delete_key(topic: str, unique_key: str, settings: BrokerSettings) -> str:
    """Return the TIMER_DEL_UNIQKEY that recalls a message. Java: `TimerMessageStore.buildDeleteKey`."""
    return f"{topic}+{unique_key}" if settings.appendTopicForTimerDeleteKey else unique_key


def _illegal(settings: BrokerSettings) -> Refusal:
    most_ms = settings.timerMaxDelaySec * 1000
    return Refusal(
        ResponseCode.MESSAGE_ILLEGAL,
        f"timer message illegal, the delay time should not be bigger than the max delay {most_ms}ms; "
        "or if set del msg, the delay time should be bigger than the current time",
    )


class TimerMessageStore:
    """The timer messages that wait for their due time. The journal has a row for each message.

    A message with TIMER_DEL_UNIQKEY is a recall: neither the recall nor the message with this key that is due in the
    same second is delivered.
    """

    def __init__(self, store: MessageStore, settings: BrokerSettings, journal: Journal) -> None:
        self.settings = settings
        self._store = store
        self._journal = journal
        self._due: list[tuple[int, int]] = []
        """A heap of (due time in milliseconds since 1970, queue offset)."""
        self._waiting: set[int] = set()
        self._recalled: defaultdict[int, set[str]] = defaultdict(set)
        """The keys (`delete_key`) of recalled messages by due time."""
        for offset, row in journal.items(JournalKind.TIMER):
            due_ms, _, key = row.partition(_SEPARATOR)
            self._add(int(offset), int(due_ms), key)
        store.add_retention_rule(self._needed_from)

    def put(self, message: StoredMessage, delivery_ms: int) -> tuple[PutResult, StoredMessage]:
        """Store a message in the timer topic. Returns position and stored message. Raises like MessageStore.put."""
        properties = {
            **message.properties,
            names.TIMER_OUT_MS: str(delivery_ms),
            names.REAL_TOPIC: message.topic,
            names.REAL_QUEUE_ID: str(message.queue_id),
        }
        encode_properties(
            _delivered(properties, delivery_ms, delivery_ms)
        )  # raises if the properties of the delivered message would be too long
        waiting = replace(message, topic=TIMER_TOPIC, queue_id=_QUEUE_ID, properties=properties)
        stored = self._store.put(waiting)
        due_ms = delivery_ms + PRECISION_MS
        key = properties.get(names.TIMER_DEL_UNIQKEY, "")
        self._journal.put(
            JournalKind.TIMER, str(stored.queue_offset), f"{due_ms}{_SEPARATOR}{key}" if key else str(due_ms)
        )
        self._add(stored.queue_offset, due_ms, key)
        return stored, waiting

    def next_due_ms(self) -> int | None:
        """Return when the next message is due, in milliseconds since 1970; None if no message waits."""
        return self._due[0][0] if self._due else None

    def deliver_next(self, now_ms: int) -> None:
        """Deliver the next message, unless it was recalled. Raises Refusal like MessageStore.put."""
        due_ms, offset = self._due[0]
        with dropping_damaged():
            self._deliver(offset, now_ms, self._recalled.get(due_ms, ()))
        heappop(self._due)
        self._waiting.discard(offset)
        self._journal.delete(JournalKind.TIMER, str(offset))
        if self.next_due_ms() != due_ms:
            self._recalled.pop(due_ms, None)

    def _add(self, offset: int, due_ms: int, key: str) -> None:
        heappush(self._due, (due_ms, offset))
        self._waiting.add(offset)
        if key:
            self._recalled[due_ms].add(key)

    def _deliver(self, offset: int, now_ms: int, recalled: Collection[str]) -> None:
        record = self._store.record_of(TIMER_TOPIC, _QUEUE_ID, offset)
        if record is None:  # the timer topic was deleted
            return
        message = decode_record(record)
        if names.TIMER_DEL_UNIQKEY in message.properties:
            return
        topic, unique_key = message.properties[names.REAL_TOPIC], message.properties.get(names.UNIQ_KEY)
        if recalled and unique_key and delete_key(topic, unique_key, self.settings) in recalled:
            return
        enqueue_ms = message.store_timestamp // PRECISION_MS * PRECISION_MS
        self._store.put(
            replace(
                message,
                topic=topic,
                queue_id=int(message.properties[names.REAL_QUEUE_ID]),
                properties=_delivered(message.properties, enqueue_ms, now_ms),
            )
        )

    def _needed_from(self, topic: str, queue_id: int) -> int | None:
        return min(self._waiting, default=None) if topic == TIMER_TOPIC else None


def _delivered(properties: Mapping[str, str], enqueue_ms: int, dequeue_ms: int) -> dict[str, str]:
    return {**properties, names.TIMER_ENQUEUE_MS: str(enqueue_ms), names.TIMER_DEQUEUE_MS: str(dequeue_ms)}


log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 1.0
"""The pause between attempts while the store refuses messages."""
POLL_AGAIN_SECONDS: Final = 1.0
"""The longest sleep while a message waits, because the clock may be set or the machine suspended meanwhile."""
_MAX_AT_ONCE: Final = 1000
"""The limit of deliveries in one turn of the event loop, so that requests are answered in between."""
_LEVELS: Final = re.compile(r"\s*\d+[smhd](\s+\d+[smhd])*\s*", re.ASCII)
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNKNOWN_LEVEL_MS: Final = 1000  # the delay of a level that messageDelayLevel lacks; Java: computeDeliverTimestamp


class DelayedDelivery(Protocol):
    """A source of delayed deliveries, such as the timer messages. Times are milliseconds since 1970."""

    def next_due_ms(self) -> int | None:
        """Return the time of the next delivery; None if no message waits."""

    def deliver_next(self, now_ms: int) -> None:
        """Make the next delivery. Called only when it is due. Raises Refusal like MessageStore.put."""


class ScheduledMessage(NamedTuple):
    """A stored message and its position. A delayed message is stored in another topic, with more properties."""

    result: PutResult
    message: StoredMessage


class ScheduleMessageService:
    """The service that delivers delayed messages by `clock.wall`, exact to a millisecond (RocketMQ: to 100 ms).

    A delivered message and the progress of its delay level become durable together, in one turn of the event loop. So
    a restart loses no message and delivers none twice. Raises UnknownSettingError if the delay levels are invalid.
    """

    def __init__(self, store: MessageStore, settings: BrokerSettings, clock: Clock, journal: Journal) -> None:
        self._store = store
        self._clock = clock
        self._journal = journal
        self._timers = TimerMessageStore(store, settings, journal)
        self._deliveries: list[DelayedDelivery] = [self._timers]
        self._offsets = {int(level): int(offset) for level, offset in journal.items(JournalKind.DELAY)}
        self._wake_at = math.inf  # when `run` wakes, in seconds since 1970
        self._woken = asyncio.Event()
        self.change_settings(settings)
        store.add_retention_rule(self._needed_from)

    def change_settings(self, settings: BrokerSettings) -> None:
        """Apply other settings. Raises UnknownSettingError if the delay levels are invalid."""
        self._delays_ms = _delays_ms(settings.messageDelayLevel)
        self._settings = self._timers.settings = settings
        self._woken.set()

    def add_delivery(self, delivery: DelayedDelivery) -> None:
        self._deliveries.append(delivery)

    def put(self, message: StoredMessage) -> ScheduledMessage:
        """Store a message. It is delayed if its properties have a delay level or a delivery time.

        Raises the errors of MessageStore.put, Refusal if the delivery time is too far ahead or invalid, and
        ProtocolError if the delay level is not a number.
        """
        properties = message.properties
        if names.DELAY in properties and (level := delay_level(properties)) > 0:
            return self._delay(message, min(level, len(self._delays_ms)))
        if not REQUESTED.isdisjoint(properties) and message.topic != TIMER_TOPIC:
            delivery_ms = timer_delivery_ms(properties, self._now_ms(), self._settings)
            if delivery_ms is not None:
                held = ScheduledMessage(*self._timers.put(message, delivery_ms))
                self.wake_for(delivery_ms + PRECISION_MS)
                return held
        return ScheduledMessage(self._store.put(message), message)

    def next_due(self) -> float | None:
        """Return the time when the next message is due, in seconds since 1970; None if no message waits."""
        now_ms = self._now_ms()
        times = [
            self._due_ms(level, entry.tags_code, now_ms)
            for level, queue, offset in self._levels()
            if (entry := queue.entry(offset)) is not None
        ]
        times += [due_ms for one in self._deliveries if (due_ms := one.next_due_ms()) is not None]
        return min(times) / 1000 if times else None

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return two offsets for each delay level: the next message to deliver, and the end of the level's queue."""
        return {level: (offset, queue.max_offset) for level, queue, offset in self._levels()}

    def wake(self) -> None:
        """Deliver due messages now. Call this after the clock jumped."""
        self._deliver()
        self._woken.set()

    async def run(self) -> None:
        """Deliver messages when they are due, until cancelled."""
        while True:
            self._woken.clear()
            rest = 0.0 if self._deliver() else RETRY_SECONDS
            due = self.next_due()
            self._wake_at = math.inf if due is None else due
            seconds = None
            if due is not None:
                seconds = max(rest, min(due - self._clock.wall(), POLL_AGAIN_SECONDS))
            with contextlib.suppress(TimeoutError):
                async with self._clock.timeout(seconds):
                    await self._woken.wait()

    def _delay(self, message: StoredMessage, level: int) -> ScheduledMessage:
        properties = {key: value for key, value in message.properties.items() if key not in REQUESTED}
        properties |= {
            names.DELAY: str(level),
            names.REAL_TOPIC: message.topic,
            names.REAL_QUEUE_ID: str(message.queue_id),
        }
        waiting = replace(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=properties)
        due_ms = self._now_ms() + self._delays_ms[level - 1]
        stored = self._store.put(waiting, tags_code=due_ms)
        self.wake_for(due_ms)
        return ScheduledMessage(stored, waiting)

    def wake_for(self, due_ms: int) -> None:
        """Wake `run` if it would sleep past this due time, in milliseconds since 1970."""
        if due_ms / 1000 < self._wake_at:
            self._woken.set()

    def _deliver(self) -> bool:
        """Deliver due messages. Returns False if the store refused a message."""
        now_ms = self._now_ms()
        try:
            room = _MAX_AT_ONCE
            for delivery in self._deliveries:
                while room and (due_ms := delivery.next_due_ms()) is not None and due_ms <= now_ms:
                    delivery.deliver_next(now_ms)
                    room -= 1
            for level, queue, offset in self._levels():
                room -= self._deliver_level(level, queue, offset, now_ms, room)
        except RmqdError as error:
            log.warning("broker.delivery_failed", error=str(error), retry_seconds=RETRY_SECONDS)
            return False
        return True

    def _deliver_level(self, level: int, queue: ConsumeQueue, start: int, now_ms: int, most: int) -> int:
        offset = start
        try:
            for entry in queue.entries(start, most):
                if self._due_ms(level, entry.tags_code, now_ms) > now_ms:
                    break
                record = self._store.record(entry.commit_log_offset)
                if record is not None:
                    with dropping_damaged():
                        self._store.put(_time_up(record))
                offset += 1
        finally:
            if offset > start:
                self._offsets[level] = offset
                self._journal.put(JournalKind.DELAY, str(level), str(offset))
        return offset - start

    def _levels(self) -> Iterator[tuple[int, ConsumeQueue, int]]:
        """Yield each delay level that ever had a message, its queue, and the offset of the next message to deliver."""
        for queue_id, queue in self._store.queues(SCHEDULE_TOPIC).items():
            level = queue_id + 1
            yield level, queue, self._offsets.get(level, 0)

    def _due_ms(self, level: int, due_ms: int, now_ms: int) -> int:
        """Return when a message is due: now if `due_ms` is further ahead than the level's current delay."""
        delay_ms = self._delays_ms[level - 1] if level <= len(self._delays_ms) else _UNKNOWN_LEVEL_MS
        return due_ms if due_ms <= now_ms + delay_ms else now_ms

    def _needed_from(self, topic: str, queue_id: int) -> int | None:
        return self._offsets.get(queue_id + 1, 0) if topic == SCHEDULE_TOPIC else None

    def _now_ms(self) -> int:
        # rounded, because tests set the clock to `next_due`, and truncation could be a millisecond early
        return round(self._clock.wall() * 1000)


def delay_level(properties: Mapping[str, str]) -> int:
    """Return the delay level in a message's properties; 0 for none. Raises ProtocolError if it is not a number."""
    return parse_integer(properties.get(names.DELAY, "0"), names.DELAY)


def _time_up(record: bytes) -> StoredMessage:
    """Decode a delayed message, and restore its topic and queue. The properties stay unchanged."""
    message = decode_record(record)
    return replace(
        message, topic=message.properties[names.REAL_TOPIC], queue_id=int(message.properties[names.REAL_QUEUE_ID])
    )


def _delays_ms(levels: str) -> list[int]:
    """Return the delays of `messageDelayLevel` in milliseconds, from level 1."""
    if not _LEVELS.fullmatch(levels):
        raise UnknownSettingError(f"messageDelayLevel={levels!r}: expected delays such as 30s, 5m, 2h or 1d")
    return [int(level[:-1]) * _UNIT_MS[level[-1]] for level in levels.split()]
