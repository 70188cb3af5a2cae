"""Figures: the data of the view and the summary at one moment, and the samples for calculating rates."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rmqd.consumer.stats.snapshot import HANDLED_RESULTS, GroupSnapshot, QueueSnapshot
from rmqd.demo.ledger import DeadLettered, HandledOrder, Ledger
from rmqd.demo.producer import OrderProducer

SAMPLE_SECONDS: Final = 0.5
SAMPLES: Final = 400  # more than the number of columns of the widest terminal
RATE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue of the group. None: not known yet."""

    name: str
    state: str
    committed: int | None
    lag: int
    cached: int


@dataclass(frozen=True, slots=True)
class Account:
    """The locations of the messages of the group's topics. At a quiet moment the four parts add up to `stored`."""

    stored: int
    acknowledged: int
    dead_letters: int
    waiting: int
    """Messages that wait for a retry: sent back, and not handled again yet."""
    behind: int
    """Messages that are not handled yet."""

    @property
    def missing(self) -> int:
        """The messages in no part: 0 at a quiet moment, except messages that the group's filter skips."""
        return self.stored - self.acknowledged - self.dead_letters - self.waiting - self.behind


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """One moment of the demo. Histories have one value for each SAMPLE_SECONDS, the newest last."""

    elapsed_seconds: float
    state: str
    problem: str
    """Why the group does not run, or makes no progress; empty if it does."""
    sent: int
    failed: int
    account: Account
    retried: int
    in_rate: float
    out_rate: float
    max_lag: int
    in_history: Sequence[float]
    out_history: Sequence[float]
    lag_history: Sequence[float]
    queues: Sequence[QueueRow]
    handled: Sequence[HandledOrder]
    dead_letters: Sequence[DeadLettered]


class _Sample(NamedTuple):
    seconds: float
    sent: int
    handled: int
    lag: int


class Observer:
    """Makes figures from the demo's parts."""

    def __init__(self, topics: Collection[str], producer: OrderProducer, ledger: Ledger) -> None:
        self._topics = topics
        self._producer = producer
        self._ledger = ledger
        self._positions: dict[tuple[str, int], int] = {}
        self._samples: deque[_Sample] = deque([_Sample(0.0, 0, 0, 0)], maxlen=SAMPLES)
        self._max_lag = 0

    def committed(self, topic: str, queue: int, offset: int) -> None:
        """Use this offset of a queue that the group has released."""
        self._positions[topic, queue] = offset

    def figures(self, group: GroupSnapshot, state: str, elapsed_seconds: float) -> DemoFigures:
        """Return the present figures. Called several times a second."""
        for queue in group.queues:
            self._note_position(queue)
        sent, handled = self._producer.sent, _count(group, *HANDLED_RESULTS)
        account = self._account(group)
        self._max_lag = max(self._max_lag, account.behind)
        if elapsed_seconds - self._samples[-1].seconds >= SAMPLE_SECONDS:
            self._samples.append(_Sample(elapsed_seconds, sent, handled, account.behind))
        samples = list(self._samples)
        steps = list(itertools.pairwise(samples))
        past = next((one for one in samples if one.seconds >= elapsed_seconds - RATE_SECONDS), samples[-1])
        return DemoFigures(
            elapsed_seconds=elapsed_seconds,
            state=state,
            problem=_problem(group),
            sent=sent,
            failed=self._producer.failed,
            account=account,
            retried=_sent_back(group),
            in_rate=_rate(sent - past.sent, elapsed_seconds - past.seconds),
            out_rate=_rate(handled - past.handled, elapsed_seconds - past.seconds),
            max_lag=self._max_lag,
            in_history=[_rate(new.sent - old.sent, new.seconds - old.seconds) for old, new in steps],
            out_history=[_rate(new.handled - old.handled, new.seconds - old.seconds) for old, new in steps],
            lag_history=[sample.lag for sample in samples[1:]],
            queues=[self._row(queue) for queue in sorted(group.queues, key=_order)],
            handled=list(reversed(self._ledger.handled)),
            dead_letters=list(reversed(self._ledger.dead_letters)),
        )

    def _note_position(self, queue: QueueSnapshot) -> None:
        if queue.max is not None and queue.lag is not None:
            name = self._ledger.retry_topic if queue.is_retry else queue.topic
            self._positions[name, queue.queue] = queue.max - queue.lag

    def _account(self, group: GroupSnapshot) -> Account:
        handled_again = sum(sum(topic.handled.values()) for topic in group.topics if topic.is_retry)
        return Account(
            stored=sum(self._ledger.stored(topic) for topic in self._topics),
            acknowledged=_count(group, "acked"),
            dead_letters=self._ledger.given_up,
            waiting=max(0, _sent_back(group) - handled_again),
            behind=sum(self._behind(topic, queue) for topic, queue in self._ledger.ends if topic in self._topics),
        )

    def _behind(self, topic: str, queue: int) -> int:
        return max(0, self._ledger.ends[topic, queue] - self._positions.get((topic, queue), 0))

    def _row(self, queue: QueueSnapshot) -> QueueRow:
        topic, name = (self._ledger.retry_topic, "retries") if queue.is_retry else (queue.topic, queue.topic)
        behind = self._behind(topic, queue.queue)
        return QueueRow(f"{name} {queue.queue}", queue.state, queue.committed, behind, queue.cached)


def _problem(group: GroupSnapshot) -> str:
    stalls = (queue.stall for queue in group.queues)
    found = next((problem for problem in (*group.problems, *stalls) if problem is not None), None)
    return group.failure or (f"{found.evidence}; {found.next}" if found is not None else "")


def _order(queue: QueueSnapshot) -> tuple[bool, str, int]:
    return queue.is_retry, queue.topic, queue.queue


def _count(group: GroupSnapshot, *results: str) -> int:
    return sum(topic.handled[result] for topic in group.topics for result in results)


def _sent_back(group: GroupSnapshot) -> int:
    """Return the number of messages sent back to the broker, without an orderly group's retries in place."""
    return sum(sum(topic.retries.values()) for topic in group.topics)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
