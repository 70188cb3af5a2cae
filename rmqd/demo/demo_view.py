"""The demo's figures at one moment, and a frame of the live view: styled lines that fit the terminal's height.

Colours are the terminal's own sixteen, without white, black and yellow, so that they are readable on light and dark
backgrounds.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Final, NamedTuple

from rich.cells import set_cell_size
from rich.console import Group
from rich.text import Text

from rmqd.consumer.stats.stats_snapshot import HANDLED_RESULTS, GroupSnapshot, QueueSnapshot
from rmqd.daemon.http.status_view import style_of
from rmqd.demo.demo_orders import DeadLetteredOrder, DemoLedger, HandledOrder, OrderProducer
from rmqd.runtime.live_screen import fill_screen
from rmqd.runtime.plain_text import format_age

SAMPLE_SECONDS: Final = 0.5
MAX_SAMPLES: Final = 400  # more samples than the widest terminal has columns
RATE_PERIOD_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class DemoQueueRow:
    """One queue of the group. `committed` is None if it is not known yet."""

    name: str
    state: str
    committed: int | None
    lag: int
    cached: int


@dataclass(frozen=True, slots=True)
class MessageAccount:
    """The messages of the group's topics by state. The other four counts and `unaccounted` add up to `stored`."""

    stored: int
    acknowledged: int
    dead_letters: int
    waiting: int
    """Messages that were sent back, and were not handled again yet."""
    unhandled: int
    """Messages that were not handled yet."""

    @property
    def unaccounted(self) -> int:
        """The number of stored messages in none of the four counts: skipped by the group's filter, or in flight."""
        return self.stored - self.acknowledged - self.dead_letters - self.waiting - self.unhandled


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """The figures of one moment. Histories have one value for each SAMPLE_SECONDS, the newest value last."""

    elapsed_seconds: float
    state: str
    problem: str
    """Why the group does not run or makes no progress; empty if there is no problem."""
    sent: int
    failed_sends: int
    account: MessageAccount
    retried: int
    sent_per_second: float
    handled_per_second: float
    max_lag: int
    sent_rate_history: Sequence[float]
    handled_rate_history: Sequence[float]
    lag_history: Sequence[float]
    queues: Sequence[DemoQueueRow]
    handled: Sequence[HandledOrder]
    dead_letters: Sequence[DeadLetteredOrder]


class _Sample(NamedTuple):
    seconds: float
    sent: int
    handled: int
    lag: int


class DemoObserver:
    """Collects figures from the group, the producer and the ledger, with their history."""

    def __init__(self, topics: Collection[str], producer: OrderProducer, ledger: DemoLedger) -> None:
        self._topics = topics
        self._producer = producer
        self._ledger = ledger
        self._positions: dict[tuple[str, int], int] = {}
        self._samples: deque[_Sample] = deque([_Sample(0.0, 0, 0, 0)], maxlen=MAX_SAMPLES)
        self._max_lag = 0

    def set_committed(self, topic: str, queue: int, offset: int) -> None:
        """Set the committed offset of a queue that the group has released."""
        self._positions[topic, queue] = offset

    def figures(self, group: GroupSnapshot, state: str, elapsed_seconds: float) -> DemoFigures:
        """Return the current figures, and extend the histories. Called several times per second."""
        for queue in group.queues:
            self._note_position(queue)
        sent, handled = self._producer.sent, _count(group, *HANDLED_RESULTS)
        account = self._account(group)
        self._max_lag = max(self._max_lag, account.unhandled)
        if elapsed_seconds - self._samples[-1].seconds >= SAMPLE_SECONDS:
            self._samples.append(_Sample(elapsed_seconds, sent, handled, account.unhandled))
        samples = list(self._samples)
        steps = list(itertools.pairwise(samples))
        past = next((one for one in samples if one.seconds >= elapsed_seconds - RATE_PERIOD_SECONDS), samples[-1])
        return DemoFigures(
            elapsed_seconds=elapsed_seconds,
            state=state,
            problem=_problem(group),
            sent=sent,
            failed_sends=self._producer.failed,
            account=account,
            retried=_sent_back(group),
            sent_per_second=_rate(sent - past.sent, elapsed_seconds - past.seconds),
            handled_per_second=_rate(handled - past.handled, elapsed_seconds - past.seconds),
            max_lag=self._max_lag,
            sent_rate_history=[_rate(new.sent - old.sent, new.seconds - old.seconds) for old, new in steps],
            handled_rate_history=[_rate(new.handled - old.handled, new.seconds - old.seconds) for old, new in steps],
            lag_history=[sample.lag for sample in samples[1:]],
            queues=[self._row(queue) for queue in sorted(group.queues, key=_order)],
            handled=list(reversed(self._ledger.handled)),
            dead_letters=list(reversed(self._ledger.dead_letters)),
        )

    def _note_position(self, queue: QueueSnapshot) -> None:
        if queue.max is not None and queue.lag is not None:
            name = self._ledger.retry_topic if queue.is_retry else queue.topic
            self._positions[name, queue.queue] = queue.max - queue.lag

    def _account(self, group: GroupSnapshot) -> MessageAccount:
        handled_again = sum(sum(topic.handled.values()) for topic in group.topics if topic.is_retry)
        return MessageAccount(
            stored=sum(self._ledger.stored_messages(topic) for topic in self._topics),
            acknowledged=_count(group, "acked"),
            dead_letters=self._ledger.dead_letter_count,
            waiting=max(0, _sent_back(group) - handled_again),
            unhandled=sum(self._behind(topic, queue) for topic, queue in self._ledger.ends if topic in self._topics),
        )

    def _behind(self, topic: str, queue: int) -> int:
        return max(0, self._ledger.ends[topic, queue] - self._positions.get((topic, queue), 0))

    def _row(self, queue: QueueSnapshot) -> DemoQueueRow:
        topic, name = (self._ledger.retry_topic, "retries") if queue.is_retry else (queue.topic, queue.topic)
        behind = self._behind(topic, queue.queue)
        return DemoQueueRow(f"{name} {queue.queue}", queue.state, queue.committed, behind, queue.cached)


def _problem(group: GroupSnapshot) -> str:
    stalls = (queue.stall for queue in group.queues)
    found = next((problem for problem in (*group.problems, *stalls) if problem is not None), None)
    return group.failure or (f"{found.evidence}; {found.next}" if found is not None else "")


def _order(queue: QueueSnapshot) -> tuple[bool, str, int]:
    return queue.is_retry, queue.topic, queue.queue


def _count(group: GroupSnapshot, *results: str) -> int:
    return sum(topic.handled[result] for topic in group.topics for result in results)


def _sent_back(group: GroupSnapshot) -> int:
    """Return how many messages were sent back to the broker. An orderly group's retries in place do not count."""
    return sum(sum(topic.retries.values()) for topic in group.topics)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


BLOCK_CHARACTERS: Final = "▁▂▃▄▅▆▇█"
ASCII_BLOCK_CHARACTERS: Final = "_.-:=+*#"


def sparkline(values: Sequence[float], top: float, width: int, *, ascii_only: bool = False) -> str:
    """Return the newest `width` values as block characters. Values of `top` or more have the highest block."""
    blocks = ASCII_BLOCK_CHARACTERS if ascii_only else BLOCK_CHARACTERS
    shown = values[max(0, len(values) - width) :] if width > 0 else ()
    return "".join(blocks[min(int(value / top * len(blocks)), len(blocks) - 1)] for value in shown)


def one_line(text: str) -> str:
    """Return the text without line ends and control characters."""
    return "".join(character if character.isprintable() else " " for character in text)


MIN_TOTALS_WIDTH: Final = 55
MIN_TWO_COLUMNS_WIDTH: Final = 119
QUEUES_WIDTH: Final = 56  # width of the queues if the handled orders are next to them
ROOMY_SCREEN_LINES: Final = 20  # with at least this many lines, an empty line is above the last line
MIN_LIST_LINES: Final = 3  # a list with fewer lines is not shown
ORDER_KEY_WIDTH: Final = 12
COLUMN_GAP: Final = "  "
DEMO_RETRY_DELAYS: Final = "2s, 3s, 4s"  # the delays of the first three retries at the demo's broker
USUAL_RETRY_DELAYS: Final = "10s, 30s, 1m"
STYLE_BY_OUTCOME: Final = {"acked": "green", "retried": "magenta", "dead letter": "red"}


@dataclass(frozen=True, slots=True)
class DemoSetup:
    """The data that stay the same for the whole demo. `log` is the path of the log file."""

    group: str
    nameserver: str
    log: str
    is_on_spark: bool = False

    @property
    def group_text(self) -> str:
        """The group's name, with "on Spark" if it runs there."""
        return f"{self.group} on Spark" if self.is_on_spark else self.group


@dataclass(frozen=True, slots=True)
class ScreenSize:
    """The size of the terminal. `ascii_only` if its encoding has no block characters."""

    width: int
    height: int
    ascii_only: bool = False


def render_frame(setting: DemoSetup, figures: DemoFigures, hint: str, size: ScreenSize) -> Group:
    """Return a frame that fits the terminal's height. Its last line is `hint`, such as "Ctrl-C to end"."""
    width, height = max(size.width, 1), max(size.height, 1)
    last = Text(f" {hint}", "bold")
    end = [Text(), last] if height >= ROOMY_SCREEN_LINES else [last]
    body = height - len(end)
    lines = [*_head(setting, figures, width), *_meters(figures, width, size.ascii_only)]
    rest = body - len(lines)
    queues = _queues(figures, min(width, QUEUES_WIDTH))
    if width >= MIN_TWO_COLUMNS_WIDTH:
        beside = _handled(figures, width - QUEUES_WIDTH, max(len(queues), min(rest * 2 // 3, rest - 6)))
        lines += _side_by_side(queues, beside)
    elif len(queues) <= rest:
        lines += queues
        rest -= len(queues)
        lines += _handled(figures, width, rest - min(rest // 2, 1 + max(1, len(figures.dead_letters))))
    lines += _dead_letters(figures, body - len(lines))
    return fill_screen(lines, end, height)


def _head(setting: DemoSetup, figures: DemoFigures, width: int) -> list[Text]:
    style = style_of(figures.state) if figures.state in ("running", "failed") else "bold"
    title = Text.assemble((" rmqd demo", "bold"), COLUMN_GAP, setting.group_text, COLUMN_GAP, (figures.state, style))
    time = format_age(figures.elapsed_seconds)
    title.append(" " * max(1, width - title.cell_len - len(time) - 1) + time)
    parts = (
        f" embedded RocketMQ at {setting.nameserver}",
        f"; retries after {DEMO_RETRY_DELAYS} here",
        f" instead of {USUAL_RETRY_DELAYS}",
    )
    fitting = [text for text in accumulate(parts) if len(text) < width]
    below = Text(fitting[-1] if fitting else parts[0], "dim")
    return [title, Text(f" {one_line(figures.problem)}", "red") if figures.problem else below, Text()]


def _meters(figures: DemoFigures, width: int, ascii_only: bool) -> list[Text]:
    account = figures.account
    totals = [
        ("sent", figures.sent, ""),
        ("acknowledged", account.acknowledged, "green"),
        ("waiting for a retry", account.waiting, "magenta" if account.waiting else ""),
        ("dead letters", account.dead_letters, "red" if account.dead_letters else ""),
    ]
    right = 1 + max(len(label) for label, _, _ in totals) + 9 if width >= MIN_TOTALS_WIDTH else 0
    room = max(0, width - 18 - right - 2)
    rows = [
        ("in", f"{figures.sent_per_second:.0f}/s", figures.sent_rate_history, "cyan"),
        ("out", f"{figures.handled_per_second:.0f}/s", figures.handled_rate_history, "cyan"),
        ("lag", f"{account.unhandled:,}", figures.lag_history, "magenta"),
        ("", "", (), ""),
    ]
    top = max([*figures.sent_rate_history[-room:], *figures.handled_rate_history[-room:], 1.0]) if room else 1.0
    lines = []
    for (name, value, history, style), (label, total, color) in zip(rows, totals, strict=True):
        line = Text(f" {name:<4}{value:>8}" + COLUMN_GAP)
        peak = top if name != "lag" else max([*history[-room:], 1.0]) if room else 1.0
        line.append(sparkline(history, peak, room, ascii_only=ascii_only), style)
        if right:
            line.append(" " * (width - right - line.cell_len))
            line.append(f"{label:<{right - 10}}", "dim").append(f"{total:>9,}", color)
        lines.append(line)
    return [*(lines if right else lines[:3]), Text()]


def _queues(figures: DemoFigures, width: int) -> list[Text]:
    name_width = max([len(row.name) for row in figures.queues], default=5) + 2
    name_width = max(8, min(name_width, width - 43))
    head = f" {'QUEUE':<{name_width}}{'STATE':<16}{'COMMITTED':>9}{'LAG':>8}{'CACHED':>8}"
    lines = [Text(head, "dim")]
    for row in figures.queues:
        line = Text(f" {set_cell_size(row.name, name_width)}")
        line.append(f"{row.state.replace('_', ' '):<16}", style_of(row.state, "dim"))
        committed = "-" if row.committed is None else f"{row.committed:,}"
        lines.append(line.append(f"{committed:>9}{row.lag:>8,}{row.cached:>8,}"))
    return [*(lines if figures.queues else [*lines, _nothing()]), Text()]


def _handled(figures: DemoFigures, width: int, height: int) -> list[Text]:
    if height < MIN_LIST_LINES:
        return []
    lines = [Text(" LAST HANDLED", "dim")]
    for one in figures.handled[: height - 2]:
        customer, amount = one.customer_and_amount()
        line = Text(" " + set_cell_size(one_line(one.key), ORDER_KEY_WIDTH))
        if width >= MIN_TOTALS_WIDTH:
            line.append(set_cell_size(one_line(customer), max(8, min(20, width - 50))) + f"{amount:>11}" + COLUMN_GAP)
        line.append(set_cell_size(one.tag, 10), "dim")
        line.append(one.outcome, STYLE_BY_OUTCOME[one.outcome])
        lines.append(line.append(f" #{one.attempt}" if one.attempt > 1 else "", "dim"))
    return [*(lines if figures.handled else [*lines, _nothing()]), Text()]


def _dead_letters(figures: DemoFigures, height: int) -> list[Text]:
    if height < MIN_LIST_LINES - 1:
        return []
    lines = [Text(" DEAD LETTERS", "dim")]
    for one in figures.dead_letters[: height - 1]:
        line = Text(" " + set_cell_size(one_line(one.key), ORDER_KEY_WIDTH))
        lines.append(line.append(one_line(one.reason), "red"))
    return lines if figures.dead_letters else [*lines, _nothing()]


def _side_by_side(left: Sequence[Text], right: Sequence[Text]) -> Iterable[Text]:
    for one, other in zip_longest(left, right, fillvalue=Text()):
        line = one.copy()
        line.truncate(QUEUES_WIDTH, pad=True)
        yield Text.assemble(line, other)


def _nothing() -> Text:
    return Text(" none", "dim")
