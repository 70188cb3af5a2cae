"""Messages that come later: by delay level (`ScheduleMessageService.java`), and by timer."""

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
"""Between attempts while the store takes nothing."""
LOOK_AGAIN_SECONDS: Final = 1.0
"""At most so long it sleeps while something waits: the machine's clock may be set, or the machine suspended."""
_MOST_AT_ONCE: Final = 1000
"""Of one turn of the loop, so that requests are answered between."""
_LEVELS: Final = re.compile(r"\s*\d+[smhd](\s+\d+[smhd])*\s*", re.ASCII)
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNKNOWN_LEVEL_MS: Final = 1000  # Java: computeDeliverTimestamp


class Delivery(Protocol):
    """Something that comes later, by milliseconds since 1970."""

    def next_due_ms(self) -> int | None:
        """When the next one is due; None where nothing waits."""

    def deliver(self, now_ms: int, most: int) -> int:
        """Deliver what is due, at most so much, and return how much it was. Raises Refusal as MessageStore.put."""


class Scheduled(NamedTuple):
    """Where a message was stored, and as what: one that waits has another topic and more properties."""

    result: PutResult
    message: StoredMessage


class ScheduleMessageService:
    """Delivers what is due by `clock.wall`: at its time, in whole milliseconds, not at the next of 100 ms as RocketMQ.

    A delivery and the progress of its level go to the journal in one turn of the loop, hence together: after a restart
    nothing comes twice, and nothing is missing. Raises UnknownSettingError for delay levels that are none.
    """

    def __init__(self, store: MessageStore, settings: BrokerSettings, clock: Clock, journal: Journal) -> None:
        self._store = store
        self._clock = clock
        self._journal = journal
        self._timers = TimerMessageStore(store, journal)
        self._deliveries: list[Delivery] = [self._timers]
        self._offsets = {int(level): int(offset) for level, offset in journal.items(Kind.DELAY)}
        self._wake_at = math.inf  # wall seconds up to which `run` sleeps
        self._woken = asyncio.Event()
        self.change_settings(settings)
        store.keep(self._needed_from)

    def change_settings(self, settings: BrokerSettings) -> None:
        """Go on with other settings. Raises UnknownSettingError for delay levels that are none."""
        self._delays_ms = _delays_ms(settings.messageDelayLevel)
        self._settings = settings
        self._woken.set()

    def deliver_also(self, delivery: Delivery) -> None:
        """Have something else that comes later delivered with the messages."""
        self._deliveries.append(delivery)

    def put(self, message: StoredMessage) -> Scheduled:
        """Store a message, to wait where its properties ask for a level or a time.

        Raises as MessageStore.put, Refusal for a time too far ahead, and ProtocolError for a level that is no number.
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
        """When the next message is due, in seconds since 1970; None where none waits."""
        now_ms = self._now_ms()
        times = [
            self._due_ms(level, entry.tags_code, now_ms)
            for level, queue, offset in self._levels()
            if (entry := queue.entry(offset)) is not None
        ]
        times += [due_ms for one in self._deliveries if (due_ms := one.next_due_ms()) is not None]
        return min(times) / 1000 if times else None

    def progress(self) -> dict[int, tuple[int, int]]:
        """By level, up to which offset it was delivered, and how many came."""
        return {level: (offset, queue.max_offset) for level, queue, offset in self._levels()}

    def wake(self) -> None:
        """The clock jumped: deliver what is due now."""
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
                async with asyncio.timeout(seconds):
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
        """Something is to be delivered at this time, in milliseconds since 1970."""
        if due_ms / 1000 < self._wake_at:
            self._woken.set()

    def _deliver(self) -> bool:
        """Store what is due in its own topics; says whether that went well."""
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
        """Each level in which something was ever stored, its queue, and where in it the next message to deliver is."""
        for queue_id, queue in self._store.queues(SCHEDULE_TOPIC).items():
            level = queue_id + 1
            yield level, queue, self._offsets.get(level, 0)

    def _due_ms(self, level: int, due_ms: int, now_ms: int) -> int:
        """A message waits no longer than its level says now."""
        delay_ms = self._delays_ms[level - 1] if level <= len(self._delays_ms) else _UNKNOWN_LEVEL_MS
        return due_ms if due_ms <= now_ms + delay_ms else now_ms

    def _needed_from(self, topic: str, queue_id: int) -> int | None:
        return self._offsets.get(queue_id + 1, 0) if topic == SCHEDULE_TOPIC else None

    def _now_ms(self) -> int:
        # rounded, so that a clock that stands at `next_due` is not a millisecond short of it
        return round(self._clock.wall() * 1000)


def delay_level(properties: Mapping[str, str]) -> int:
    """The level that a message asks for; 0 for none. Raises ProtocolError for what is no number."""
    return parse_integer(properties.get(DELAY, "0"), DELAY)


def _time_up(record: bytes) -> StoredMessage:
    """A message that waited for its level, as it goes to its own topic: its properties stay as they are."""
    message = decode_record(record)
    return replace(message, topic=message.properties[REAL_TOPIC], queue_id=int(message.properties[REAL_QUEUE_ID]))


def _delays_ms(levels: str) -> list[int]:
    """The delays of `messageDelayLevel` in milliseconds, from level 1 on."""
    if not _LEVELS.fullmatch(levels):
        raise UnknownSettingError(f"messageDelayLevel={levels!r}: it must be delays such as 30s, 5m, 2h or 1d")
    return [int(level[:-1]) * _UNIT_MS[level[-1]] for level in levels.split()]
