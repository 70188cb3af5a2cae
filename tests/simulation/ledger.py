"""The messages delivered to handlers, and when the handlers finished them."""

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
    """The place where a message was first stored."""

    broker: str
    queue: int
    offset: int


class Copy(NamedTuple):
    """A copy of a message in a pop retry topic. `at` is in seconds since the beginning."""

    at: float
    broker: str
    attempt: int
    """How often the message was popped before."""


class Verdict(enum.Enum):
    """A handler's decision about one message of its batch."""

    DONE = "did"
    HELD = "did, without a commit,"
    """Handled, but not committed yet by a handler that commits itself."""
    FAILED = "failed"
    DEAD = "gave up"
    """Dead-lettered by the handler's decision."""
    DROPPED = "dropped"
    """Dropped in a broadcasting group, which has no retries and no dead letters."""
    AGAIN = "passed over"
    """Delivered again without counting an attempt: after a failed message, or after a rollback."""


@dataclass(slots=True)
class Call:
    """One delivery of one message. Times are seconds since the beginning; `until` is None while the handler has it."""

    member: str
    key: str
    place: Stored
    is_retry: bool
    attempt: int
    """The number of earlier attempts, by the message."""
    began: float
    until: float | None = None
    verdict: Verdict | None = None
    level: int | None = None
    """The delay level that the handler asked for."""
    hidden_until: float = float("inf")
    """When the invisible time of a popped message ends, as known when the handler received it."""
    is_shown_again: bool = False
    """Whether it came from a pop retry topic, which a group that was switched pulls too."""
    is_late: bool = False
    """Whether the member knew at its start that the invisible time was over."""
    is_passed: bool = False
    """Whether the handler had finished it when it ended, even if a rollback repeated it later."""

    @property
    def is_popped(self) -> bool:
        """Whether the message was popped, and not pulled."""
        return self.hidden_until < float("inf")

    @property
    def is_good(self) -> bool:
        """Whether the message was handled and committed, or dropped."""
        return self.verdict in (Verdict.DONE, Verdict.DROPPED)


class Ledger:
    """All deliveries, by the message's key.

    A message that fails with `most_attempts` reconsume times is dead-lettered. In an orderly group, and in one with
    `order_by` (`repeats_in_place`), a failed message stays in its queue. An orderly handler may commit itself
    (`is_manual`). A broadcasting group (`drops`) drops messages instead of dead-lettering them.
    """

    def __init__(
        self, timeline: Timeline, most_attempts: int, *, repeats_in_place: bool, is_manual: bool, drops: bool = False
    ) -> None:
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self.finished: dict[Stored, float] = {}
        """When a handler last finished the message at each place, so that it may be committed."""
        self.delivered = 0
        """The number of deliveries."""
        self.is_over = False
        """Whether all members leave, so that rolled-back messages are not redelivered."""
        self._timeline = timeline
        self._most_attempts = most_attempts
        self._repeats_in_place = repeats_in_place
        self._is_manual = is_manual
        self._drops = drops
        self.dead: dict[str, list[float]] = defaultdict(list)
        """When brokers stored a message as a dead letter, by its key."""
        self.copies: dict[str, list[Copy]] = defaultdict(list)
        """The copies of popped messages in pop retry topics, by key and in the order of time."""
        self._held: dict[tuple[str, int], list[Call]] = defaultdict(list)

    def begin(self, member: str, message: Message) -> Call:
        """Record that a handler received a message."""
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
            if any(held.place == place for held in own):  # restarted: not a failed message before the held ones
                self._let_go(place[:2], lambda held: held in own and held.place.offset >= place.offset)
        self.calls[call.key].append(call)
        self.delivered += 1
        attempt = f" (attempt {call.attempt + 1})" if call.attempt else ""
        self._timeline.note(member, f"has {call.key} of {queue}:{message.queue_offset}{attempt}", call.key)
        return call

    def end(self, call: Call, verdict: Verdict, level: int | None = None) -> None:
        """Record a handler's decision."""
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
        """Whether a message is dead-lettered if this attempt fails."""
        return call.attempt >= self._most_attempts

    def commit(self, last: Call) -> None:
        """Record a handler's commit of a queue, without the messages that another member handled meanwhile."""
        for call in [held for held in self._held[last.place[:2]] if held.member == last.member]:
            self._held[last.place[:2]].remove(call)
            is_others = any(other.is_good and other.place == call.place for other in self.calls[call.key])
            call.verdict = Verdict.AGAIN if is_others else Verdict.DONE
            self.finished[call.place] = self._timeline.now()
        self._timeline.note(last.member, f"commits {last.place.broker} queue {last.place.queue}")

    def roll_back(self, calls: list[Call]) -> None:
        """Record a rollback of all uncommitted messages of a handler, including this batch."""
        for call in calls:
            self.end(call, Verdict.AGAIN)
        if not self.is_over:
            self._let_go(calls[0].place[:2], lambda held: held.member == calls[0].member)

    def died(self, broker: str, key: str) -> None:
        """Record that a broker stored a dead letter."""
        self.dead[key].append(self._timeline.now())
        self._timeline.note(broker, f"has {key} among the dead letters", key)

    def shown_again(self, broker: str, record: bytes) -> None:
        """Record that a broker stored a message in a pop retry topic."""
        message = decode_record(record)
        self.copies[message.properties["KEYS"]].append(Copy(self._timeline.now(), broker, message.reconsume_times))

    def cut_short(self, call: Call, timeout_seconds: float) -> None:
        """Record a cancelled handler. If its time was over, the message is sent back, and may be committed."""
        call.until = self._timeline.now()
        if call.until >= call.began + timeout_seconds:
            is_past = not self._repeats_in_place or self.is_last(call)
            call.is_passed = self._drops and is_past
            call.verdict, call.level = Verdict.DROPPED if call.is_passed else Verdict.FAILED, EXPIRED_DELAY_LEVEL
            if not call.is_retry and is_past:
                self.finished[call.place] = self._timeline.now()
        self._timeline.note(call.member, f"was cut short at {call.key}", call.key)

    def is_done(self, key: str) -> bool:
        """Whether a handler has handled the message, or it is a dead letter."""
        return key in self.dead or any(call.is_good or call.verdict is Verdict.HELD for call in self.calls.get(key, ()))

    def keys_at(self, place: Stored) -> list[str]:
        """Return the keys of the messages that handlers received from a place."""
        return [key for key, calls in self.calls.items() if any(call.place == place for call in calls)]

    def _let_go(self, queue: tuple[str, int], is_gone: Callable[[Call], bool]) -> None:
        """Discard uncommitted calls of a queue: their messages are redelivered."""
        for call in [held for held in self._held[queue] if is_gone(held)]:
            call.verdict = Verdict.AGAIN
            self._held[queue].remove(call)


def key_of(record: bytes) -> str:
    """Return the key of a stored message."""
    return decode_record(record).properties["KEYS"]
