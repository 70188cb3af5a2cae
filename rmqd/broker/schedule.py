"""Delivers delayed messages: by delay level (`ScheduleMessageService.java`), and by timer."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import structlog

from rmqd.broker.journal import Journal, Kind
from rmqd.broker.settings import BrokerSettings, UnknownSettingError
from rmqd.broker.store.consume_queue import ConsumeQueue
from rmqd.broker.store.message_store import MessageStore, PutResult
from rmqd.broker.timers import PRECISION_MS, REQUESTED, TimerMessageStore, timer_out_ms
from rmqd.clock import Clock
from rmqd.errors import RmqdError
from rmqd.wire.fields import parse_integer
from rmqd.wire.messages.encode import StoredMessage, decode_record
from rmqd.wire.messages.properties import DELAY, REAL_QUEUE_ID, REAL_TOPIC
from rmqd.wire.topics import SCHEDULE_TOPIC, TIMER_TOPIC

log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 1.0
"""The pause between attempts while the store refuses messages."""
LOOK_AGAIN_SECONDS: Final = 1.0
"""The longest sleep while a message waits, because the clock may be set, or the machine suspended."""
_MOST_AT_ONCE: Final = 1000
"""The maximum of deliveries in one turn of the loop, so that requests are answered in between."""
_LEVELS: Final = re.compile(r"\s*\d+[smhd](\s+\d+[smhd])*\s*", re.ASCII)
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNKNOWN_LEVEL_MS: Final = 1000  # Java: computeDeliverTimestamp


class Delivery(Protocol):
    """A source of delayed deliveries. Times are milliseconds since 1970."""

    def next_due_ms(self) -> int | None:
        """Return the time of the next delivery; None if no message waits."""

    def deliver(self, now_ms: int, most: int) -> int:
        """Deliver due messages, up to a number. Returns how many were due. Raises Refusal like MessageStore.put."""


class Scheduled(NamedTuple):
    """The position of a stored message, and the message as stored: delayed with another topic and more properties."""

    result: PutResult
    message: StoredMessage


class ScheduleMessageService:
    """Delivers messages when they are due by `clock.wall`, to the millisecond. RocketMQ does so every 100 ms.

    A delivery and the progress of its level become durable together, in one turn of the loop. So after a restart no
    message is delivered twice or lost. Raises UnknownSettingError if the delay levels are invalid.
    """

    def __init__(self, store: MessageStore, settings: BrokerSettings, clock: Clock, journal: Journal) -> None:
        self._store = store
        self._clock = clock
        self._journal = journal
        self._timers = TimerMessageStore(store, settings, journal)
        self._deliveries: list[Delivery] = [self._timers]
        self._offsets = {int(level): int(offset) for level, offset in journal.items(Kind.DELAY)}
        self._wake_at = math.inf  # wall time when `run` wakes
        self._woken = asyncio.Event()
        self.change_settings(settings)
        store.keep(self._needed_from)

    def change_settings(self, settings: BrokerSettings) -> None:
        """Apply other settings. Raises UnknownSettingError if the delay levels are invalid."""
        self._delays_ms = _delays_ms(settings.messageDelayLevel)
        self._settings = self._timers.settings = settings
        self._woken.set()

    def deliver_also(self, delivery: Delivery) -> None:
        """Add another source of delayed deliveries."""
        self._deliveries.append(delivery)

    def put(self, message: StoredMessage) -> Scheduled:
        """Store a message. It is delayed if its properties have a delay level or a time.

        Raises like MessageStore.put, and Refusal if the time is too far ahead, and ProtocolError if the level is
        invalid.
        """
        properties = message.properties
        if DELAY in properties and (level := delay_level(properties)) > 0:
            return self._delay(message, min(level, len(self._delays_ms)))
        if not REQUESTED.isdisjoint(properties) and message.topic != TIMER_TOPIC:
            out_ms = timer_out_ms(properties, self._now_ms(), self._settings)
            if out_ms is not None:
                held = Scheduled(*self._timers.hold(message, out_ms))
                self.wake_for(out_ms + PRECISION_MS)
                return held
        return Scheduled(self._store.put(message), message)

    def next_due(self) -> float | None:
        """Return the time when the next message is due, in seconds since 1970; None if none waits."""
        now_ms = self._now_ms()
        times = [
            self._due_ms(level, entry.tags_code, now_ms)
            for level, queue, offset in self._levels()
            if (entry := queue.entry(offset)) is not None
        ]
        times += [due_ms for one in self._deliveries if (due_ms := one.next_due_ms()) is not None]
        return min(times) / 1000 if times else None

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return, by level, the offset of the next message to deliver, and the end of the level's queue."""
        return {level: (offset, queue.max_offset) for level, queue, offset in self._levels()}

    def wake(self) -> None:
        """Deliver due messages now, because the clock jumped."""
        self._deliver()
        self._woken.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            self._woken.clear()
            rest = 0.0 if self._deliver() else RETRY_SECONDS
            due = self.next_due()
            self._wake_at = math.inf if due is None else due
            seconds = None
            if due is not None:
                seconds = max(rest, min(due - self._clock.wall(), LOOK_AGAIN_SECONDS))
            try:
                async with self._clock.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                pass

    def _delay(self, message: StoredMessage, level: int) -> Scheduled:
        properties = {key: value for key, value in message.properties.items() if key not in REQUESTED}
        properties |= {DELAY: str(level), REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
        waiting = replace(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=properties)
        due_ms = self._now_ms() + self._delays_ms[level - 1]
        stored = self._store.put(waiting, tags_code=due_ms)
        self.wake_for(due_ms)
        return Scheduled(stored, waiting)

    def wake_for(self, due_ms: int) -> None:
        """Wake `run` for a delivery at this time, in milliseconds since 1970."""
        if due_ms / 1000 < self._wake_at:
            self._woken.set()

    def _deliver(self) -> bool:
        """Deliver due messages. Returns False if the store refused a message."""
        now_ms = self._now_ms()
        try:
            room = _MOST_AT_ONCE
            for delivery in self._deliveries:
                room -= delivery.deliver(now_ms, room)
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
                    self._store.put(_time_up(record))
                offset += 1
        finally:
            if offset > start:
                self._offsets[level] = offset
                self._journal.put(Kind.DELAY, str(level), str(offset))
        return offset - start

    def _levels(self) -> Iterator[tuple[int, ConsumeQueue, int]]:
        """Yield each level that ever had a message, with its queue and the offset of its next message to deliver."""
        for queue_id, queue in self._store.queues(SCHEDULE_TOPIC).items():
            level = queue_id + 1
            yield level, queue, self._offsets.get(level, 0)

    def _due_ms(self, level: int, due_ms: int, now_ms: int) -> int:
        """Return the time when a message is due, at the latest after the level's present delay."""
        delay_ms = self._delays_ms[level - 1] if level <= len(self._delays_ms) else _UNKNOWN_LEVEL_MS
        return due_ms if due_ms <= now_ms + delay_ms else now_ms

    def _needed_from(self, topic: str, queue_id: int) -> int | None:
        return self._offsets.get(queue_id + 1, 0) if topic == SCHEDULE_TOPIC else None

    def _now_ms(self) -> int:
        # rounded, so that a clock set to `next_due` is not a millisecond early
        return round(self._clock.wall() * 1000)


def delay_level(properties: Mapping[str, str]) -> int:
    """Return the delay level in a message's properties; 0 for none. Raises ProtocolError if it is not a number."""
    return parse_integer(properties.get(DELAY, "0"), DELAY)


def _time_up(record: bytes) -> StoredMessage:
    """Return a delayed message as it is delivered to its own topic. Its properties are unchanged."""
    message = decode_record(record)
    return replace(message, topic=message.properties[REAL_TOPIC], queue_id=int(message.properties[REAL_QUEUE_ID]))


def _delays_ms(levels: str) -> list[int]:
    """Return the delays of `messageDelayLevel` in milliseconds, from level 1."""
    if not _LEVELS.fullmatch(levels):
        raise UnknownSettingError(f"messageDelayLevel={levels!r}: expected delays such as 30s, 5m, 2h or 1d")
    return [int(level[:-1]) * _UNIT_MS[level[-1]] for level in levels.split()]
