"""What handlers were given, and when they finished it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from rmqd.wire.messages.encode import decode_record
from rmqd.wire.messages.message import Message
from tests.simulation.timeline import Timeline


class Stored(NamedTuple):
    """A message by the place where it was first stored."""

    broker: str
    queue: int
    offset: int


@dataclass(slots=True)
class Call:
    """One delivery of one message. Times are seconds since the beginning; `until` is None while the handler has it."""

    member: str
    key: str
    place: Stored
    is_retry: bool
    began: float
    until: float | None = None
    is_good: bool = False


class Ledger:
    """All deliveries, by the message's key."""

    def __init__(self, timeline: Timeline) -> None:
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self.finished: set[Stored] = set()
        """The places of messages that a handler has finished, well or not."""
        self._timeline = timeline

    def begin(self, member: str, message: Message) -> Call:
        """A handler has the message."""
        queue = message.message_queue
        place = Stored(queue.broker_name, queue.queue_id, message.queue_offset)
        is_retry = queue.topic.startswith("%RETRY%")
        call = Call(member, message.keys or "", place, is_retry, self._timeline.now())
        self.calls[call.key].append(call)
        self._timeline.note(member, f"has {call.key} of {queue}:{message.queue_offset}", call.key)
        return call

    def end(self, call: Call, *, is_good: bool) -> None:
        """The handler has finished it."""
        call.until, call.is_good = self._timeline.now(), is_good
        if not call.is_retry:
            self.finished.add(call.place)
        self._timeline.note(call.member, f"{'did' if is_good else 'failed'} {call.key}", call.key)

    def cut_short(self, call: Call, timeout_seconds: float) -> None:
        """The handler was cancelled. If it has had its time, the message is sent back, and may be committed."""
        call.until = self._timeline.now()
        if not call.is_retry and call.until >= call.began + timeout_seconds:
            self.finished.add(call.place)
        self._timeline.note(call.member, f"was cut short at {call.key}", call.key)

    def is_done(self, key: str) -> bool:
        """Whether some handler has finished the message."""
        return any(call.is_good for call in self.calls.get(key, ()))

    def keys_at(self, place: Stored) -> list[str]:
        """The keys of the messages that handlers had from a place."""
        return [key for key, calls in self.calls.items() if any(call.place == place for call in calls)]


def key_of(record: bytes) -> str:
    """The key of a stored message."""
    return decode_record(record).properties["KEYS"]
