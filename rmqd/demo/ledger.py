"""What the broker stored and what the handler did, noted from outside as it happens."""

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

KEPT: Final = 40  # of what is listed, the newest
MOST_REASONS: Final = 1000  # told apart; the rest is one more
OTHER_REASONS: Final = "other reasons"
# Bounds of the ages in seconds, each 2 % above the one before: a percentile is that exact.
AGE_BOUNDS: Final = tuple(0.0005 * 1.02**step for step in range(700))
_MODULE: Final = re.compile(r"^(?:\w+\.)+")  # before the name of an exception's class


@dataclass(frozen=True, slots=True)
class HandledOrder:
    """One call of the handler: what it was about, and what came of it."""

    key: str
    tag: str
    body: bytes
    attempt: int
    verdict: str
    """`acked`, `retried` or `dead letter`."""

    def described(self) -> tuple[str, str]:
        """Customer and amount where the body is an order of the demo's."""
        try:
            order: Any = json.loads(self.body)
            return str(order["customer"]), f"{order['amount']} {order['currency']}"
        except (ValueError, LookupError, TypeError):
            return self.body[:80].decode(errors="replace"), ""


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """A message in the group's dead letters, as the broker has it."""

    key: str
    reason: str


class Ledger:
    """Listens to the broker (`arrived`) and to the group (`hook`)."""

    def __init__(self, group: str, clock: Clock) -> None:
        self.ends: Counter[tuple[str, int]] = Counter()
        """The end of each queue, by topic and number."""
        self.dead_letters: deque[DeadLettered] = deque(maxlen=KEPT)
        self.reasons: Counter[str] = Counter()
        """Dead letters by reason."""
        self.handled: deque[HandledOrder] = deque(maxlen=KEPT)
        self.ages = Histogram(AGE_BOUNDS)
        """Seconds from a message's being stored to the end of its first handling."""
        self.hook = Hook("demo", after_batch=self._after_batch)
        self.retry_topic = retry_topic(group)
        self._dlq_topic = dlq_topic(group)
        self._clock = clock

    def stored(self, topic: str) -> int:
        """How many messages the broker has stored in a topic."""
        return sum(end for (name, _), end in self.ends.items() if name == topic)

    @property
    def given_up(self) -> int:
        """How many messages are among the group's dead letters."""
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
        """An order was handled; how old it was is told of the first attempt alone."""
        if age_seconds is not None:
            self.ages.observe(age_seconds)
        self.handled.append(order)

    def _after_batch(self, batch: Batch, context: HookContext) -> None:
        for order, age_seconds in handled_orders(batch, context, self._clock.wall()):
            self.note(order, age_seconds)


def handled_orders(batch: Batch, context: HookContext, now: float) -> Iterator[tuple[HandledOrder, float | None]]:
    """What became of each message of a batch, and at its first attempt how many seconds after it was stored."""
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
        return DeadLettered("", "a record that cannot be read")
    reason = message.properties.get(RMQD_REASON) or "given up by the broker"
    exception = _MODULE.sub("", message.properties.get(RMQD_EXCEPTION, "").strip().rpartition("\n")[2])
    return DeadLettered(_key(message), f"{reason}: {exception}" if exception else reason)


def _key(message: Message) -> str:
    return message.keys or message.msg_id
