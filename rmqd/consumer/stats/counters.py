"""The counters of one group, updated by its parts and read for snapshots, and the group's current problems."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from math import inf
from operator import attrgetter
from typing import Any, Final

import structlog

from rmqd.consumer.canary import CANARY_VARIANT
from rmqd.consumer.health.causes import Problem
from rmqd.consumer.stats.stats_snapshot import (
    MAX_ERROR_CHARACTERS,
    MAX_ERRORS,
    MAX_REASON_CHARACTERS,
    MAX_REASONS,
    MAX_TRACE_LINES,
    OTHER_REASONS,
    LastError,
    TopicCounters,
    TopicSnapshot,
)
from rmqd.runtime.histogram import HANDLER_DURATION_BOUNDS, Histogram
from rmqd.runtime.plain_text import class_name, traceback_tail
from rmqd.wire.messages.message import Message, MessageBlock

log = structlog.get_logger(__name__)


class GroupProblems:
    """The group's current problems. Each is logged once when it starts and once when it ends."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Problem] = {}

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._known.values())

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def begin(self, key: Hashable, problem: Problem) -> None:
        """Add a problem and log it. If a problem with this key is known, update it without a log line.

        Different problems of the group need different keys.
        """
        if key not in self._known:
            log.error("group.problem", cause=problem.cause, evidence=problem.evidence, next=problem.next)
        self._known[key] = problem

    def set(self, key: Hashable, problem: Problem | None) -> None:
        """Begin the problem with this key, or end it if `problem` is None."""
        if problem is None:
            self.end(key)
        else:
            self.begin(key, problem)

    def end(self, key: Hashable) -> None:
        """Remove the problem with this key, if there is one, and log its end."""
        problem = self._known.pop(key, None)
        if problem is not None:
            log.info("group.problem_ended", cause=problem.cause, was=problem.evidence)


AGE_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400)
QUICK_SECONDS = HANDLER_DURATION_BOUNDS[0]  # quicker calls all fall into the histogram's first bucket
MAX_NAME_CHARACTERS = 100
MAX_TRACE_CHARACTERS = 160  # limit for each line of a traceback
MAX_EXCEPTION_CLASSES = 50  # limits the label values; further classes count as "other"


_COUNTER_NAMES: Final = tuple(one.name for one in fields(TopicCounters))
_COUNTS: Final = attrgetter(*_COUNTER_NAMES)


class TopicStats(TopicCounters):
    """The counters of one topic's messages. If `is_retry`, they count only messages from the retry topic."""

    def __init__(self, topic: str, is_retry: bool, variant: str = "") -> None:
        super().__init__(topic, is_retry, variant)
        self.pulls = 0  # pulls with messages
        self.pull_seconds = 0.0  # response times of these pulls, including the broker's hold time
        self.acked = 0  # acknowledged messages that `snapshot` has not added to `handled` yet; quick to increment
        self.errors: deque[LastError] = deque(maxlen=MAX_ERRORS)
        self.duration = Histogram(HANDLER_DURATION_BOUNDS)
        self.age = Histogram(AGE_SECONDS)
        # Values that are not in the histograms yet. Nearly every batch falls into the same buckets as the previous
        # batch, so values are added to a histogram together.
        self._quick_count = 0
        self._quick_seconds = 0.0
        self._age_low = self._age_high = 0.0
        self._age_count = 0
        self._age_sum = 0.0
        self._last: TopicSnapshot | None = None

    def of(self, message: Message) -> TopicStats:
        """Return the counters for this message; DividedStats has several."""
        return self

    def count_pulled(self, block: MessageBlock) -> None:
        """Count the messages of a response, except messages that the filter rejected."""
        self.received += block.unfinished

    @property
    def attempts(self) -> int:
        """A number that grows with each received or handled message, and with each call that raised."""
        return self.received + self.acked + sum(self.handled.values()) + sum(self.exceptions.values())

    def count_pull(self, seconds: float) -> None:
        """Count the response time of a pull with messages."""
        self.pulls += 1
        self.pull_seconds += seconds

    def count_held_back(self, reason: str, oldest: Message | None) -> int:
        """Count that a queue is not pulled because of `reason`. `oldest` is the first message in its cache.

        Returns the new count for this reason.
        """
        self.flow_control[reason] += 1
        return self.flow_control[reason]

    def add_held_seconds(self, reason: str, seconds: float, oldest: Message | None) -> None:
        """Add `seconds` to the time in which queues were not pulled because of `reason`."""
        self.held_seconds[reason] += seconds

    def count_sent_back(self, level: int) -> None:
        self.retries[level] = self.retries.get(level, 0) + 1

    def acknowledged(self, batch: Sequence[Message], seconds: float, age_seconds: float) -> None:
        """Count a batch that was acknowledged as a whole, because the handler returned. This is the hot path."""
        messages = len(batch)
        self.acked += messages
        if seconds <= QUICK_SECONDS and self._age_low < age_seconds <= self._age_high:
            self._quick_count += 1
            self._quick_seconds += seconds
            self._age_count += messages
            self._age_sum += age_seconds * messages
        else:
            self._observe(messages, seconds, age_seconds)

    def count_acknowledged_singly(self, messages: Sequence[Message], seconds: float, now: float) -> None:
        """Count quick calls with one message each, which took `seconds` in total and ended at the Unix time `now`."""
        count = len(messages)
        oldest, newest = (now - message.store_timestamp * 0.001 for message in (messages[0], messages[-1]))
        if self._age_low < newest <= oldest <= self._age_high:
            self.acked += count
            self._quick_count += count
            self._quick_seconds += seconds
            self._age_count += count
            self._age_sum += (oldest + newest) / 2 * count  # the first message of a queue is the oldest
        else:
            for message in messages:
                self.acknowledged((message,), seconds / count, now - message.store_timestamp * 0.001)

    def count_call(self, batch: Sequence[Message], seconds: float, age_seconds: float) -> None:
        """Count a handler call of `seconds`. The oldest message of its batch was stored `age_seconds` earlier."""
        self._observe(len(batch), seconds, age_seconds)

    def snapshots(self) -> tuple[TopicSnapshot, ...]:
        """Return one snapshot for each topic that these counters cover."""
        return (self.snapshot(),)

    def _observe(self, messages: int, seconds: float, age_seconds: float) -> None:
        if seconds <= QUICK_SECONDS:
            self._quick_count += 1
            self._quick_seconds += seconds
        else:
            self.duration.observe(seconds)
        if not self._age_low < age_seconds <= self._age_high:
            self._flush_age()
            at = bisect_left(AGE_SECONDS, age_seconds)
            self._age_low = AGE_SECONDS[at - 1] if at else -inf
            self._age_high = AGE_SECONDS[at] if at < len(AGE_SECONDS) else inf
        self._age_count += messages
        self._age_sum += age_seconds * messages

    def count(self, result: str) -> None:
        """Count an attempt that ended with `result`, one of HANDLED_RESULTS."""
        self.handled[result] += 1

    def count_possible_duplicates(self, cause: str, messages: int) -> None:
        """Count messages that were handled here and may be handled again by another member, because of `cause`."""
        self.duplicates[cause] = self.duplicates.get(cause, 0) + messages

    def count_dead_letter(self, cause: str, reason: str) -> None:
        """Count a dead letter by its cause and reason.

        Handlers may put anything into reasons, such as ids. If there are too many reasons, the rarest reason counts as
        OTHER_REASONS.
        """
        self.dead_letters[cause] += 1
        reasons, reason = self.dead_letter_reasons, reason[:MAX_REASON_CHARACTERS]
        reasons[reason] = reasons.get(reason, 0) + 1
        if len(reasons) > MAX_REASONS + (OTHER_REASONS in reasons):
            rarest = min((one for one in reasons if one not in (reason, OTHER_REASONS)), key=reasons.__getitem__)
            reasons[OTHER_REASONS] = reasons.get(OTHER_REASONS, 0) + reasons.pop(rarest)

    def count_exception(
        self, error: BaseException, text: str, first: Message, at: float, *, declined: bool = False
    ) -> None:
        """Count a handler call that raised `error` at the Unix time `at`. `text` describes the error.

        `first` is the batch's first message. If `declined`, the error was a decision (Retry, DeadLetter, Suspend), an
        invalid body or a timeout, so no traceback is kept.
        """
        trace = () if declined else traceback_tail(error, MAX_TRACE_LINES, MAX_TRACE_CHARACTERS)
        self.errors.append(LastError(at, text[:MAX_ERROR_CHARACTERS], self.topic, first.msg_id, trace))
        name = class_name(error)[:MAX_NAME_CHARACTERS]
        if name not in self.exceptions and len(self.exceptions) >= MAX_EXCEPTION_CLASSES:
            name = "other"
        self.exceptions[name] = self.exceptions.get(name, 0) + 1

    def _flush_age(self) -> None:
        if self._age_count:
            self.age.observe(self._age_sum / self._age_count, self._age_count)
            self._age_count, self._age_sum = 0, 0.0

    def snapshot(self) -> TopicSnapshot:
        """Return a snapshot of the counters of this topic; the previous snapshot if no counter has changed."""
        self._flush_age()
        if self._quick_count:
            self.duration.observe(self._quick_seconds / self._quick_count, self._quick_count)
            self._quick_count, self._quick_seconds = 0, 0.0
        self.handled["acked"], self.acked = self.handled["acked"] + self.acked, 0
        counts, times, last = _COUNTS(self), (self.duration.snapshot(), self.age.snapshot()), self._last
        if last is None or (last.handler_duration, last.message_age) != times or _COUNTS(last) != counts:
            copies = [value.copy() if isinstance(value, dict) else value for value in counts]
            values: dict[str, Any] = dict(zip(_COUNTER_NAMES, copies, strict=True))
            values |= {"handler_duration": times[0], "message_age": times[1], "errors": tuple(self.errors)}
            self._last = last = TopicSnapshot(**values)
        return last


def snapshots_of(stats: Mapping[str, TopicStats]) -> tuple[TopicSnapshot, ...]:
    """Return snapshots of all counters of a group. Counters that several topics share are included once."""
    return tuple(topic for one in dict.fromkeys(stats.values()) for topic in one.snapshots())


# Name of a rate -> names of the totals (see `totals_of`) whose increases make up the rate.
RATE_TOTALS: Final = {
    "received": ("received",),
    "handled": ("handled",),
    "failed": ("failed",),
    "retried": ("retried", "expired"),
    "dead_lettered": ("dead_lettered",),
}


def totals_of(topics: Iterable[TopicSnapshot]) -> dict[str, int]:
    """Return the totals of all topics, including retries. The status page has the same names in the same order."""
    names = "received handled acked failed retried expired dead_lettered corrupt deduplicated"
    totals = dict.fromkeys(names.split(), 0)
    for topic in topics:
        totals["received"] += topic.received
        totals["deduplicated"] += topic.deduplicated
        totals["failed"] += sum(topic.exceptions.values())  # calls that raised or expired
        for result, count in topic.handled.items():
            totals[result] += count
            totals["handled"] += count if result != "corrupt" else 0
    return totals


def rates_between(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Return rates per second by name. A rate is 0 if its totals fell, because the group changed its engine."""
    if seconds <= 0:
        return dict.fromkeys(RATE_TOTALS, 0.0)
    return {
        rate: max(0, sum(after[name] - before[name] for name in names)) / seconds for rate, names in RATE_TOTALS.items()
    }


class DividedStats(TopicStats):
    """Counters that count each message in one of several other counters, the `parts`.

    `key_of` returns the key of a message's part. A message without a part counts in this object.
    """

    def __init__(
        self, topic: str, is_retry: bool, parts: Mapping[Any, TopicStats], key_of: Callable[[Message], object]
    ) -> None:
        super().__init__(topic, is_retry)
        self._parts = parts
        self._key_of = key_of

    def of(self, message: Message) -> TopicStats:
        part = self._parts.get(self._key_of(message))
        return self if part is None else part.of(message)

    @property
    def attempts(self) -> int:
        return super().attempts + sum(stats.attempts for stats in self._parts.values())

    def snapshots(self) -> tuple[TopicSnapshot, ...]:
        """Return the snapshot of the messages without a part, and then the parts' snapshots."""
        return (self.snapshot(), *(one for stats in self._parts.values() for one in stats.snapshots()))

    def count_pulled(self, block: MessageBlock) -> None:
        for message in block.messages:
            if not message.finished:
                self.of(message).received += 1

    def acknowledged(self, batch: Sequence[Message], seconds: float, age_seconds: float) -> None:
        for stats, messages in self._divided(batch).items():
            stats.acked += messages
            stats._observe(messages, seconds, age_seconds)

    def count_acknowledged_singly(self, messages: Sequence[Message], seconds: float, now: float) -> None:
        for message in messages:
            self.acknowledged((message,), seconds / len(messages), now - message.store_timestamp * 0.001)

    def count_call(self, batch: Sequence[Message], seconds: float, age_seconds: float) -> None:
        for stats, messages in self._divided(batch).items():
            stats._observe(messages, seconds, age_seconds)

    def _divided(self, batch: Sequence[Message]) -> dict[TopicStats, int]:
        counts: dict[TopicStats, int] = {}
        for message in batch:
            stats = self.of(message)
            counts[stats] = counts.get(stats, 0) + 1
        return counts


class CanaryStats(DividedStats):
    """The counters of one topic, in a group with a canary in live mode. Messages of the canary count separately."""

    def __init__(self, topic: str, is_retry: bool, takes: Callable[[Message], bool]) -> None:
        super().__init__(topic, is_retry, {True: TopicStats(topic, is_retry, CANARY_VARIANT)}, takes)


class RetryTopicStats(DividedStats):
    """The counters for the retry topic of a group with several topics. Each message counts under its original topic.

    Messages whose original topic is not subscribed count under the retry topic itself.
    """

    def __init__(self, retry_topic: str, topics: Iterable[str], make: Callable[..., TopicStats] = TopicStats) -> None:
        parts = {topic: make(topic, is_retry=True) for topic in topics}
        super().__init__(retry_topic, is_retry=True, parts=parts, key_of=attrgetter("topic"))

    def count_held_back(self, reason: str, oldest: Message | None) -> int:
        """Count that a queue is not pulled because of `reason`. Without `oldest`, count it for all topics."""
        times = 0
        for stats in self._concerned(oldest):
            stats.flow_control[reason] += 1
            times = stats.flow_control[reason]
        return times

    def add_held_seconds(self, reason: str, seconds: float, oldest: Message | None) -> None:
        """Add `seconds` to the time in which queues were not pulled. Without `oldest`, add them for all topics."""
        for stats in self._concerned(oldest):
            stats.held_seconds[reason] += seconds

    def _concerned(self, oldest: Message | None) -> Iterable[TopicStats]:
        return self._parts.values() if oldest is None else (self._parts.get(oldest.topic, self),)

    def snapshots(self) -> tuple[TopicSnapshot, ...]:
        """Return snapshots of the subscribed topics, and of the retry topic itself if it has counted anything."""
        rest, *topics = super().snapshots()
        return (*topics, rest) if rest.received or rest.duplicates else tuple(topics)
