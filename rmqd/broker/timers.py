"""Timer messages: they wait in `rmq_sys_wheel_timer` until they are due (`TimerMessageStore.java`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Final

from rmqd.broker.journal import Journal, Kind
from rmqd.broker.reply import Refusal
from rmqd.broker.settings import BrokerSettings
from rmqd.broker.store.message_store import MessageStore, PutResult
from rmqd.codes import ResponseCode
from rmqd.errors import ProtocolError
from rmqd.wire.fields import parse_integer
from rmqd.wire.messages.encode import StoredMessage, decode_record, encode_properties
from rmqd.wire.messages.properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
)
from rmqd.wire.topics import TIMER_TOPIC

PRECISION_MS: Final = 1000  # Java: timerPrecisionMs
REQUESTED: Final = frozenset((TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC))
"""The properties with a producer's delivery time."""
_QUEUE_ID: Final = 0
_SEPARATOR: Final = "@"


def timer_out_ms(properties: Mapping[str, str], now_ms: int, settings: BrokerSettings) -> int | None:
    """Return the second when a message with one of REQUESTED is due, in milliseconds since 1970; None if it has passed.

    Raises Refusal if the time is too far ahead or invalid, or if the message recalls another one and the time has
    passed.
    """
    if TIMER_OUT_MS in properties:  # it has been a timer message already
        return None
    try:
        if TIMER_DELAY_SEC in properties:
            deliver_ms = now_ms + parse_integer(properties[TIMER_DELAY_SEC], TIMER_DELAY_SEC) * 1000
        elif TIMER_DELAY_MS in properties:
            deliver_ms = now_ms + parse_integer(properties[TIMER_DELAY_MS], TIMER_DELAY_MS)
        else:
            deliver_ms = parse_integer(properties[TIMER_DELIVER_MS], TIMER_DELIVER_MS)
    except ProtocolError:
        raise _illegal(settings) from None
    if deliver_ms - now_ms > settings.timerMaxDelaySec * 1000:
        raise _illegal(settings)
    if deliver_ms <= now_ms:
        if TIMER_DEL_UNIQKEY in properties:
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
    """Timer messages by their due time. The journal has a row for each.

    A message with TIMER_DEL_UNIQKEY is never delivered, nor are messages of its second with this key.
    """

    def __init__(self, store: MessageStore, settings: BrokerSettings, journal: Journal) -> None:
        self.settings = settings
        self._store = store
        self._journal = journal
        self._due: list[tuple[int, int]] = []
        """A heap of (due time in milliseconds since 1970, queue offset)."""
        self._waiting: set[int] = set()
        self._recalled: defaultdict[int, set[str]] = defaultdict(set)
        """By due time, the delete keys of recalled messages."""
        for offset, row in journal.items(Kind.TIMER):
            due_ms, _, key = row.partition(_SEPARATOR)
            self._add(int(offset), int(due_ms), key)
        store.keep(self._needed_from)

    def hold(self, message: StoredMessage, out_ms: int) -> tuple[PutResult, StoredMessage]:
        """Store a message until its due time. Returns it as stored. Raises like MessageStore.put."""
        properties = {
            **message.properties,
            TIMER_OUT_MS: str(out_ms),
            REAL_TOPIC: message.topic,
            REAL_QUEUE_ID: str(message.queue_id),
        }
        encode_properties(_delivered(properties, out_ms, out_ms))  # the message must still fit when it is delivered
        waiting = replace(message, topic=TIMER_TOPIC, queue_id=_QUEUE_ID, properties=properties)
        stored = self._store.put(waiting)
        due_ms = out_ms + PRECISION_MS
        key = properties.get(TIMER_DEL_UNIQKEY, "")
        self._journal.put(Kind.TIMER, str(stored.queue_offset), f"{due_ms}{_SEPARATOR}{key}" if key else str(due_ms))
        self._add(stored.queue_offset, due_ms, key)
        return stored, waiting

    def next_due_ms(self) -> int | None:
        """Return the time when the next message is due, or None."""
        return self._due[0][0] if self._due else None

    def deliver(self, now_ms: int, most: int) -> int:
        """Deliver due messages. Returns their number. Raises Refusal like MessageStore.put."""
        count = 0
        while count < most and self._due and self._due[0][0] <= now_ms:
            due_ms, offset = self._due[0]
            self._deliver(offset, now_ms, self._recalled.get(due_ms, ()))
            heappop(self._due)
            self._waiting.discard(offset)
            self._journal.delete(Kind.TIMER, str(offset))
            if self.next_due_ms() != due_ms:
                self._recalled.pop(due_ms, None)
            count += 1
        return count

    def _add(self, offset: int, due_ms: int, key: str) -> None:
        heappush(self._due, (due_ms, offset))
        self._waiting.add(offset)
        if key:
            self._recalled[due_ms].add(key)

    def _deliver(self, offset: int, now_ms: int, recalled: Collection[str]) -> None:
        queue = self._store.queue(TIMER_TOPIC, _QUEUE_ID)
        entry = None if queue is None else queue.entry(offset)
        record = None if entry is None else self._store.record(entry.commit_log_offset)
        if record is None:  # its topic was deleted
            return
        message = decode_record(record)
        if TIMER_DEL_UNIQKEY in message.properties:
            return
        topic, unique_key = message.properties[REAL_TOPIC], message.properties.get(UNIQ_KEY)
        if recalled and unique_key and delete_key(topic, unique_key, self.settings) in recalled:
            return
        enqueue_ms = message.store_timestamp // PRECISION_MS * PRECISION_MS
        self._store.put(
            replace(
                message,
                topic=topic,
                queue_id=int(message.properties[REAL_QUEUE_ID]),
                properties=_delivered(message.properties, enqueue_ms, now_ms),
            )
        )

    def _needed_from(self, topic: str, queue_id: int) -> int | None:
        if topic != TIMER_TOPIC or not self._waiting:
            return None
        return min(self._waiting)


def _delivered(properties: Mapping[str, str], enqueue_ms: int, dequeue_ms: int) -> dict[str, str]:
    return {**properties, TIMER_ENQUEUE_MS: str(enqueue_ms), TIMER_DEQUEUE_MS: str(dequeue_ms)}
