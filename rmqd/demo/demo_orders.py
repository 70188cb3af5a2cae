"""The shop of `rmqd demo`: its orders, their handler and producer, and the ledger that records the messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rmqd.broker.store.message_store import StoredArrival
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.consumer.handling.send_back import RMQD_EXCEPTION, RMQD_REASON
from rmqd.consumer.hooks import Hook, HookContext
from rmqd.errors import RmqdError
from rmqd.handler_api.batch import Batch, Decision, Outcome
from rmqd.runtime.clock import Clock
from rmqd.runtime.histogram import Histogram
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import dlq_topic, retry_topic

HANDLING_SECONDS: Final = 0.06


class PaymentServiceError(Exception):
    """The payment service did not answer. A retry may succeed."""


async def handle(batch: Batch) -> None:
    """Handle each order. Returning acknowledges the batch, raising retries it, `dead_letter` dead-letters one order."""
    for message in batch:
        try:
            order = json.loads(message.body)
        except ValueError as error:
            batch.dead_letter(message, f"not JSON: {error}")
            continue
        if message.tags == "paid":
            await charge(order, message.reconsume_times)
        await asyncio.sleep(HANDLING_SECONDS)  # stands for the time that sending a mail takes


async def charge(order: dict[str, Any], attempts_before: int) -> None:
    """Simulate a payment service, which fails as often as the order says. Raises PaymentServiceError."""
    if attempts_before < order.get("simulated_payment_failures", 0):
        raise PaymentServiceError("the payment service does not answer")


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of `rmqd demo`. Without `config` the sample group runs. `seconds` and `messages` limit the run."""

    config: Path | None = None
    group: str | None = None
    seconds: float | None = None
    messages: int | None = None
    engine: str = "local"


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The exit code, and the text to print after the terminal is restored."""

    exit_code: int
    closing_text: str = ""


MAX_LISTED_ORDERS: Final = 40  # newest entries of each list
MAX_COUNTED_REASONS: Final = 1000  # so many reasons have separate counts; all others share OTHER_REASONS_LABEL
OTHER_REASONS_LABEL: Final = "other reasons"
# Bounds of the ages in seconds, each 2 % above the previous one, which is the precision of percentiles.
AGE_BOUNDS_SECONDS: Final = tuple(0.0005 * 1.02**step for step in range(700))
_MODULE: Final = re.compile(r"^(?:\w+\.)+")  # the module in a qualified class name


@dataclass(frozen=True, slots=True)
class HandledOrder:
    """An order that the handler was called with, and the outcome of this attempt."""

    key: str
    tag: str
    body: bytes
    attempt: int
    outcome: str
    """`acked`, `retried` or `dead letter`."""

    def customer_and_amount(self) -> tuple[str, str]:
        """Return customer and amount of a demo order; for another body, its first characters and an empty text."""
        try:
            order: Any = json.loads(self.body)
            return str(order["customer"]), f"{order['amount']} {order['currency']}"
        except (ValueError, LookupError, TypeError):
            return self.body[:80].decode(errors="replace"), ""


@dataclass(frozen=True, slots=True)
class DeadLetteredOrder:
    """A message in the group's dead letter topic, as the broker stores it."""

    key: str
    reason: str


class DemoLedger:
    """Records the demo's messages: as the broker stores them (`on_stored`), and as the group handles them (`hook`)."""

    def __init__(self, group: str, clock: Clock) -> None:
        self.ends: Counter[tuple[str, int]] = Counter()
        """The offset after the last message of each queue, by topic and queue id."""
        self.dead_letters: deque[DeadLetteredOrder] = deque(maxlen=MAX_LISTED_ORDERS)
        self.reasons: Counter[str] = Counter()
        self.handled: deque[HandledOrder] = deque(maxlen=MAX_LISTED_ORDERS)
        self.ages = Histogram(AGE_BOUNDS_SECONDS)
        """Seconds from the storage of a message to the end of its first handling."""
        self.hook = Hook("demo", after_batch=self._after_batch)
        self.retry_topic = retry_topic(group)
        self._dlq_topic = dlq_topic(group)
        self._clock = clock

    def stored_messages(self, topic: str) -> int:
        """Return the number of messages that the broker has stored in a topic."""
        return sum(end for (name, _), end in self.ends.items() if name == topic)

    @property
    def dead_letter_count(self) -> int:
        return self.stored_messages(self._dlq_topic)

    def on_stored(self, arrival: StoredArrival) -> None:
        """Called by the broker's store for each message."""
        self.ends[arrival.topic, arrival.queue_id] = arrival.queue_offset + 1
        if arrival.topic == self._dlq_topic:
            letter = _dead_letter(arrival.record)
            self.dead_letters.append(letter)
            known = letter.reason in self.reasons or len(self.reasons) < MAX_COUNTED_REASONS
            self.reasons[letter.reason if known else OTHER_REASONS_LABEL] += 1

    def record_handled(self, order: HandledOrder, age_seconds: float | None) -> None:
        """Record a handled order. The age is only given for the first attempt."""
        if age_seconds is not None:
            self.ages.observe(age_seconds)
        self.handled.append(order)

    def _after_batch(self, batch: Batch, context: HookContext) -> None:
        for order, age_seconds in handled_orders(batch, context, self._clock.wall()):
            self.record_handled(order, age_seconds)


def handled_orders(batch: Batch, context: HookContext, now: float) -> Iterator[tuple[HandledOrder, float | None]]:
    """Yield each message of a batch with its outcome, and for a first attempt its age in seconds, else None."""
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


def _dead_letter(record: bytes) -> DeadLetteredOrder:
    try:
        [message] = decode_messages(record, MessageQueue("", "", 0)).messages
    except (RmqdError, ValueError):
        return DeadLetteredOrder("", "an unreadable record")
    reason = message.properties.get(RMQD_REASON) or "dead-lettered by the broker"
    exception = _MODULE.sub("", message.properties.get(RMQD_EXCEPTION, "").strip().rpartition("\n")[2])
    return DeadLetteredOrder(_key(message), f"{reason}: {exception}" if exception else reason)


def _key(message: Message) -> str:
    return message.keys or message.msg_id


CUSTOMERS: Final = (
    "Ada Lovelace", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Alan Turing", "Katherine Johnson",
    "Zoë Müller", "Nguyễn An", "José García", "李雷", "Margaret Hamilton", "Dennis Ritchie",
)  # fmt: skip
CURRENCIES: Final = ("EUR", "USD", "GBP", "CHF", "CNY")
TAGS: Final = ("paid", "refunded", "cancelled")
TAG_WEIGHTS: Final = (85, 9, 6)

# The first order of each kind arrives within seconds.
POISON_EVERY, FIRST_POISON = 90, 25
FAILURE_EVERY, FIRST_FAILURE = 30, 12
HOPELESS_EVERY, FIRST_HOPELESS = 240, 40
ALWAYS_FAILING: Final = 99

ORDERS_PER_SECOND: Final = 40.0
RATE_SWING: Final = 0.3  # the rate rises and falls by this share
SWING_SECONDS: Final = 23.0
FIRST_BURST_SECONDS: Final = 5.0
BURST_EVERY_SECONDS: Final = 20.0
BURST_SECONDS: Final = 2.5
BURST_ORDERS: Final = 320


class OrderGenerator:
    """Generates orders, numbered from 1, for each topic in turn."""

    def __init__(self, topics: Sequence[str], seed: int | None = None) -> None:
        self._topics = topics
        self._random = random.Random(seed)
        self._number = 0

    def next_order(self) -> OutgoingMessage:
        """Return the next order. Some orders are unreadable, or their payment fails."""
        self._number += 1
        number = self._number
        tag = self._random.choices(TAGS, TAG_WEIGHTS)[0]
        failures = self._payment_failures(number)
        order = self._order(number, "paid" if failures else tag, failures)
        topic = self._topics[number % len(self._topics)]
        body = json.dumps(order, ensure_ascii=False)
        if number % POISON_EVERY == FIRST_POISON:
            body = self._random.choice(_POISONS)(body)
        return OutgoingMessage(topic, body.encode(), tags=order["status"], keys=f"order-{number}")

    def _order(self, number: int, status: str, failures: int) -> dict[str, Any]:
        order = {
            "id": number,
            "status": status,
            "customer": self._random.choice(CUSTOMERS),
            "amount": f"{self._random.lognormvariate(4, 1):.2f}",
            "currency": self._random.choice(CURRENCIES),
            "items": self._random.randint(1, 5),
        }
        return {**order, "simulated_payment_failures": failures} if failures else order

    def _payment_failures(self, number: int) -> int:
        if number % HOPELESS_EVERY == FIRST_HOPELESS:
            return ALWAYS_FAILING
        return self._random.choice((1, 1, 1, 2)) if number % FAILURE_EVERY == FIRST_FAILURE else 0


_POISONS: Final[tuple[Callable[[str], str], ...]] = (
    lambda body: body[: len(body) // 2],
    lambda body: body.replace('"', "'"),
    lambda body: f"<order>{body}</order>",
    lambda body: f"{body}\n{body}",
)


def orders_due(elapsed_seconds: float) -> float:
    """Return how many orders are due since the start: a stream whose rate rises and falls, plus regular bursts."""
    phase = 2 * math.pi * elapsed_seconds / SWING_SECONDS
    steady = ORDERS_PER_SECOND * (elapsed_seconds + RATE_SWING * SWING_SECONDS / (2 * math.pi) * (1 - math.cos(phase)))
    since = elapsed_seconds - FIRST_BURST_SECONDS
    if since < 0:
        return steady
    over, begun = divmod(since, BURST_EVERY_SECONDS)
    return steady + BURST_ORDERS * (over + min(begun / BURST_SECONDS, 1.0))


SEND_INTERVAL_SECONDS: Final = 0.02
MAX_IN_FLIGHT: Final = 64


class OrderProducer:
    """Sends orders at the rate of `orders_due`, until `stop` is called or `most` orders were sent."""

    def __init__(self, client: ClientInstance, orders: OrderGenerator, most: int | None = None) -> None:
        self.sent = 0
        """The number of orders that the broker has acknowledged."""
        self.failed = 0
        """The number of failed sends; the broker may have stored some of these orders."""
        self.last_failure = ""
        self._client = client
        self._orders = orders
        self._most = most
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Start no further sends. Orders in flight are still counted."""
        self._stop.set()

    async def run(self) -> None:
        """Send orders until the end, with at most `MAX_IN_FLIGHT` at once. Returns when all sends have ended."""
        loop = asyncio.get_running_loop()
        began, begun = loop.time(), 0
        room = asyncio.Semaphore(MAX_IN_FLIGHT)
        async with asyncio.TaskGroup() as tasks:
            while not self._stop.is_set() and begun != self._most:
                due = int(orders_due(loop.time() - began))
                due = due if self._most is None else min(due, self._most)
                while begun < due and not self._stop.is_set():
                    begun += 1
                    await room.acquire()
                    tasks.create_task(self._send(room))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SEND_INTERVAL_SECONDS):
                        await self._stop.wait()

    async def _send(self, room: asyncio.Semaphore) -> None:
        try:
            await self._client.producer.send(self._orders.next_order())
            self.sent += 1
        except RmqdError as error:
            self.failed += 1
            self.last_failure = str(error)
        finally:
            room.release()
