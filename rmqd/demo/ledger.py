"""The messages that the broker stored and the handler handled, recorded from outside as it happens."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rmqd.broker.store.message_store import Arrival
from rmqd.clock import Clock
from rmqd.consumer.handling.copies import RMQD_EXCEPTION, RMQD_REASON
from rmqd.consumer.hooks import Hook, HookContext
from rmqd.errors import RmqdError
from rmqd.handler_api import Batch, Decision, Outcome
from rmqd.histogram import Histogram
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import dlq_topic, retry_topic

KEPT: Final = 40  # newest entries of each list
MOST_REASONS: Final = 1000  # counted separately; all others are counted together
OTHER_REASONS: Final = "other reasons"
# Bounds of the ages in seconds, each 2 % above the previous one, which is the precision of percentiles.
AGE_BOUNDS: Final = tuple(0.0005 * 1.02**step for step in range(700))
_MODULE: Final = re.compile(r"^(?:\w+\.)+")  # before the name of an exception's class


@dataclass(frozen=True, slots=True)
class HandledOrder:
    """One call of the handler: the order, and the outcome."""

    key: str
    tag: str
    body: bytes
    attempt: int
    verdict: str
    """`acked`, `retried` or `dead letter`."""

    def described(self) -> tuple[str, str]:
        """Return customer and amount if the body is an order of the demo."""
        try:
            order: Any = json.loads(self.body)
            return str(order["customer"]), f"{order['amount']} {order['currency']}"
        except (ValueError, LookupError, TypeError):
            return self.body[:80].decode(errors="replace"), ""


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A message in the group's dead letter topic, as the broker stores it."""

    key: str
    reason: str


class Ledger:
    """Records messages from the broker (`arrived`) and the group (`hook`)."""

    def __init__(self, group: str, clock: Clock) -> None:
        self.ends: Counter[tuple[str, int]] = Counter()
        """The end of each queue, by topic and queue id."""
        self.dead_letters: deque[DeadLettered] = deque(maxlen=KEPT)
        self.reasons: Counter[str] = Counter()
        """Dead letters by reason."""
        self.handled: deque[HandledOrder] = deque(maxlen=KEPT)
        self.ages = Histogram(AGE_BOUNDS)
        """Seconds from the storage of a message to the end of its first handling."""
        self.hook = Hook("demo", after_batch=self._after_batch)
        self.retry_topic = retry_topic(group)
        self._dlq_topic = dlq_topic(group)
        self._clock = clock

    def stored(self, topic: str) -> int:
        """Return the number of messages that the broker has stored in a topic."""
        return sum(end for (name, _), end in self.ends.items() if name == topic)

    @property
    def given_up(self) -> int:
        """The number of the group's dead letters."""
        return self.stored(self._dlq_topic)

    def arrived(self, arrival: Arrival) -> None:
        """Called by the broker's store for each message."""
        self.ends[arrival.topic, arrival.queue_id] = arrival.queue_offset + 1
        if arrival.topic == self._dlq_topic:
            letter = _dead_letter(arrival.record)
            self.dead_letters.append(letter)
            known = letter.reason in self.reasons or len(self.reasons) < MOST_REASONS
            self.reasons[letter.reason if known else OTHER_REASONS] += 1

    def note(self, order: HandledOrder, age_seconds: float | None) -> None:
        """Record a handled order. The age is only given for the first attempt."""
        if age_seconds is not None:
            self.ages.observe(age_seconds)
        self.handled.append(order)

    def _after_batch(self, batch: Batch, context: HookContext) -> None:
        for order, age_seconds in handled_orders(batch, context, self._clock.wall()):
            self.note(order, age_seconds)


def handled_orders(batch: Batch, context: HookContext, now: float) -> Iterator[tuple[HandledOrder, float | None]]:
    """Yield the outcome of each message of a batch; for a first attempt also the seconds since it was stored."""
    decisions = batch.decisions()
    for index, message in enumerate(batch):
        age = max(0.0, now - message.store_timestamp / 1000) if message.reconsume_times == 0 else None
        verdict = _verdict(decisions.get(index), context)
        tag, attempt = message.tags or "", message.reconsume_times + 1
        yield HandledOrder(_key(message), tag, message.body, attempt, verdict), age


def _verdict(decision: Decision | None, context: HookContext) -> str:
    undecided = Outcome.ACK if context.outcome == "success" else Outcome.RETRY
    outcome = undecided if decision is None else decision.outcome
    return {Outcome.ACK: "acked", Outcome.DEAD_LETTER: "dead letter"}.get(outcome, "retried")


def _dead_letter(record: bytes) -> DeadLettered:
    try:
        [message] = decode_messages(record, MessageQueue("", "", 0)).messages
    except (RmqdError, ValueError):
        return DeadLettered("", "an unreadable record")
    reason = message.properties.get(RMQD_REASON) or "dead-lettered by the broker"
    exception = _MODULE.sub("", message.properties.get(RMQD_EXCEPTION, "").strip().rpartition("\n")[2])
    return DeadLettered(_key(message), f"{reason}: {exception}" if exception else reason)


def _key(message: Message) -> str:
    return message.keys or message.msg_id
