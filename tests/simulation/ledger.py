"""What handlers were given, and when they finished it."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rmqd.consumer.handling.handler_failures import EXPIRED_DELAY_LEVEL
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.wire.messages.decode import decode_record
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import retry_topic
from tests.simulation.loop import START_SECONDS, WALL_SECONDS
from tests.simulation.names import GROUP
from tests.simulation.timeline import Timeline


class Stored(NamedTuple):
    """A message by the place where it was first stored."""

    broker: str
    queue: int
    offset: int


class Copy(NamedTuple):
    """A message that a broker shows again in a pop retry topic. `at` is in seconds since the beginning."""

    at: float
    broker: str
    attempt: int
    """How often it was popped before."""


class Verdict(enum.Enum):
    """What a handler decided about one message of its batch."""

    DONE = "did"
    HELD = "did, without a commit,"
    """Done by a handler that commits by itself, and has not."""
    FAILED = "failed"
    DEAD = "gave up"
    """To be a dead letter, by the handler's word."""
    DROPPED = "dropped"
    """Given up in a broadcasting group, where nothing is tried again and nobody keeps dead letters."""
    AGAIN = "passed over"
    """To come again, which is no attempt: it was behind one that failed, or was rolled back."""


@dataclass(slots=True)
class Call:
    """One delivery of one message. Times are seconds since the beginning; `until` is None while the handler has it."""

    member: str
    key: str
    place: Stored
    is_retry: bool
    attempt: int
    """How many attempts were made before, as the message says."""
    began: float
    until: float | None = None
    verdict: Verdict | None = None
    level: int | None = None
    """The delay level that the handler asked for."""
    hidden_until: float = float("inf")
    """Of a popped message: until when the broker hid it from others, as it was when the handler got it."""
    is_shown_again: bool = False
    """Whether it came out of a pop retry topic, which a group that was switched pulls too."""
    is_late: bool = False
    """Whether the member knew by then that it was hidden no more."""
    is_passed: bool = False
    """Whether the handler was done with it when it ended, also where it came again by a rollback."""

    @property
    def is_popped(self) -> bool:
        """Whether it was popped, and not pulled."""
        return self.hidden_until < float("inf")

    @property
    def is_good(self) -> bool:
        """Whether the message was done for good, or dropped."""
        return self.verdict in (Verdict.DONE, Verdict.DROPPED)


class Ledger:
    """All deliveries, by the message's key.

    `most_attempts` is the reconsume times after which a message is given up. In an orderly group, and in one
    with `order_by` (`repeats_in_place`), a failed message stays where it is; in an orderly one a handler may commit by
    itself (`is_manual`). In a broadcasting group
    (`drops`) what is given up is dropped.
    """

    def __init__(
        self, timeline: Timeline, most_attempts: int, *, repeats_in_place: bool, is_manual: bool, drops: bool = False
    ) -> None:
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self.finished: dict[Stored, float] = {}
        """The places of messages that a handler has finished, so that they may be committed; and when it last did."""
        self.delivered = 0
        """How many deliveries there were."""
        self.is_over = False
        """Whether all members leave, so that what one rolls back comes to nobody any more."""
        self._timeline = timeline
        self._most_attempts = most_attempts
        self._repeats_in_place = repeats_in_place
        self._is_manual = is_manual
        self._drops = drops
        self.dead: dict[str, list[float]] = defaultdict(list)
        """When brokers stored a message among the dead letters, by its key."""
        self.copies: dict[str, list[Copy]] = defaultdict(list)
        """What brokers show again of what was popped, by the message's key, in the order of time."""
        self._held: dict[tuple[str, int], list[Call]] = defaultdict(list)

    def begin(self, member: str, message: Message) -> Call:
        """A handler has the message."""
        queue = message.message_queue
        place = Stored(queue.broker_name, queue.queue_id, message.queue_offset)
        is_retry = queue.topic.startswith("%RETRY%")
        call = Call(member, message.keys or "", place, is_retry, message.reconsume_times, self._timeline.now())
        call.is_shown_again = is_retry and queue.topic != retry_topic(GROUP)
        if isinstance(message.block, PopBlock):
            handle = message.block.handle_of(message.queue_offset)
            call.hidden_until = (handle.pop_time + handle.invisible_time) / 1000 - WALL_SECONDS
            call.is_late = call.began > message.block.due_of(message.queue_offset) - START_SECONDS
        if self._is_manual:
            own = [held for held in self._held[place[:2]] if held.member == member]
            if any(held.place == place for held in own):  # begun anew: not one that failed in front of what it holds
                self._let_go(place[:2], lambda held: held in own and held.place.offset >= place.offset)
        self.calls[call.key].append(call)
        self.delivered += 1
        attempt = f" (attempt {call.attempt + 1})" if call.attempt else ""
        self._timeline.note(member, f"has {call.key} of {queue}:{message.queue_offset}{attempt}", call.key)
        return call

    def end(self, call: Call, verdict: Verdict, level: int | None = None) -> None:
        """The handler has finished it."""
        if verdict is Verdict.DONE and self._is_manual:
            verdict = Verdict.HELD
            self._held[call.place[:2]].append(call)
        is_past = not self._repeats_in_place or self.is_last(call)
        if self._drops and (verdict is Verdict.DEAD or (verdict is Verdict.FAILED and is_past)):
            verdict = Verdict.DROPPED
        call.until, call.verdict, call.level = self._timeline.now(), verdict, level
        call.is_passed = verdict in (Verdict.DONE, Verdict.HELD, Verdict.DROPPED)
        if not call.is_retry and (verdict in (Verdict.DONE, Verdict.DEAD) or (verdict is Verdict.FAILED and is_past)):
            self.finished[call.place] = self._timeline.now()
        asked = "" if level is None else f", and asks for level {level}"
        self._timeline.note(call.member, f"{verdict.value} {call.key}{asked}", call.key)

    def is_last(self, call: Call) -> bool:
        """Whether a message is given up if this attempt fails."""
        return call.attempt >= self._most_attempts

    def commit(self, last: Call) -> None:
        """A handler commits all that it has done of a queue; what another one did meanwhile is not its own any more."""
        for call in [held for held in self._held[last.place[:2]] if held.member == last.member]:
            self._held[last.place[:2]].remove(call)
            is_others = any(other.is_good and other.place == call.place for other in self.calls[call.key])
            call.verdict = Verdict.AGAIN if is_others else Verdict.DONE
            self.finished[call.place] = self._timeline.now()
        self._timeline.note(last.member, f"commits {last.place.broker} queue {last.place.queue}")

    def roll_back(self, calls: list[Call]) -> None:
        """A handler wants all again that it has not committed, this batch included."""
        for call in calls:
            self.end(call, Verdict.AGAIN)
        if not self.is_over:
            self._let_go(calls[0].place[:2], lambda held: held.member == calls[0].member)

    def died(self, broker: str, key: str) -> None:
        """A broker has stored a message among the dead letters."""
        self.dead[key].append(self._timeline.now())
        self._timeline.note(broker, f"has {key} among the dead letters", key)

    def shown_again(self, broker: str, record: bytes) -> None:
        """A broker has stored a message in a pop retry topic."""
        message = decode_record(record)
        self.copies[message.properties["KEYS"]].append(Copy(self._timeline.now(), broker, message.reconsume_times))

    def cut_short(self, call: Call, timeout_seconds: float) -> None:
        """The handler was cancelled. If it has had its time, the message is sent back, and may be committed."""
        call.until = self._timeline.now()
        if call.until >= call.began + timeout_seconds:
            is_past = not self._repeats_in_place or self.is_last(call)
            call.is_passed = self._drops and is_past
            call.verdict, call.level = Verdict.DROPPED if call.is_passed else Verdict.FAILED, EXPIRED_DELAY_LEVEL
            if not call.is_retry and is_past:
                self.finished[call.place] = self._timeline.now()
        self._timeline.note(call.member, f"was cut short at {call.key}", call.key)

    def is_done(self, key: str) -> bool:
        """Whether some handler has done the message, or it is a dead letter."""
        return key in self.dead or any(call.is_good or call.verdict is Verdict.HELD for call in self.calls.get(key, ()))

    def keys_at(self, place: Stored) -> list[str]:
        """The keys of the messages that handlers had from a place."""
        return [key for key, calls in self.calls.items() if any(call.place == place for call in calls)]

    def _let_go(self, queue: tuple[str, int], is_gone: Callable[[Call], bool]) -> None:
        """What was held of a queue is not any more: it comes again."""
        for call in [held for held in self._held[queue] if is_gone(held)]:
            call.verdict = Verdict.AGAIN
            self._held[queue].remove(call)


def key_of(record: bytes) -> str:
    """The key of a stored message."""
    return decode_record(record).properties["KEYS"]
