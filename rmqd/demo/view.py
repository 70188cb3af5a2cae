"""The frame of the live view: figures in, styled lines out, limited to the height of the terminal.

Colours are the terminal's own sixteen, without white, black and yellow, so that they are readable on light and dark
backgrounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Final

from rich.cells import set_cell_size
from rich.console import Group
from rich.text import Text

from rmqd.demo.render import duration, one_line, spark

if TYPE_CHECKING:
    from rmqd.demo.figures import DemoFigures

NARROW: Final = 55
WIDE: Final = 119
LEFT: Final = 56  # width of the queues if the handled orders are next to them
ROOMY: Final = 20  # with this many lines there is room for an empty one
FEWEST_LISTED: Final = 3  # lines of a list; a shorter list is useless
KEY_WIDTH: Final = 12
GAP: Final = "  "
STATE_STYLES: Final = {
    "handling": "green",
    "pulling": "green",
    "retrying": "magenta",
    "flow_controlled": "magenta",
    "stuck": "bold red",
    "paused": "magenta",
    "locked_out": "magenta",
    "running": "green",
    "failed": "bold red",
}
VERDICT_STYLES: Final = {"acked": "green", "retried": "magenta", "dead letter": "red"}


@dataclass(frozen=True, slots=True)
class Setting:
    """The constant data of a run."""

    group: str
    nameserver: str
    delays: str
    """The first delays of a retry, such as `2s, 3s, 4s`."""
    usual_delays: str
    """A broker's default delays."""
    log: str
    is_on_spark: bool = False

    @property
    def where(self) -> str:
        """The group, and its engine if that is not the demo's own process."""
        return f"{self.group} on Spark" if self.is_on_spark else self.group


@dataclass(frozen=True, slots=True)
class ScreenSize:
    """The size of the terminal. `ascii_only` if its encoding has no block characters."""

    width: int
    height: int
    ascii_only: bool = False


def frame(setting: Setting, figures: DemoFigures, hint: str, size: ScreenSize) -> Group:
    """Return one frame, not higher than the terminal. `hint` is the last line, with the user's options."""
    width, height = max(size.width, 1), max(size.height, 1)
    end = [Text(), _hint(hint)] if height >= ROOMY else [_hint(hint)]
    body = height - len(end)
    lines = [*_head(setting, figures, width), *_meters(figures, width, size.ascii_only)]
    rest = body - len(lines)
    queues = _queues(figures, min(width, LEFT))
    if width >= WIDE:
        beside = _handled(figures, width - LEFT, max(len(queues), min(rest * 2 // 3, rest - 6)))
        lines += _side_by_side(queues, beside)
    elif len(queues) <= rest:
        lines += queues
        rest -= len(queues)
        lines += _handled(figures, width, rest - min(rest // 2, 1 + max(1, len(figures.dead_letters))))
    lines += _dead_letters(figures, width, body - len(lines))
    shown = [*lines[:body], *([Text()] * (body - len(lines))), *end]
    for line in shown:
        line.no_wrap = True
    return Group(*shown)


def _head(setting: Setting, figures: DemoFigures, width: int) -> list[Text]:
    title = Text.assemble(
        (" rmqd demo", "bold"), GAP, setting.where, GAP, (figures.state, STATE_STYLES.get(figures.state, "bold"))
    )
    time = duration(figures.elapsed_seconds)
    title.append(" " * max(1, width - title.cell_len - len(time) - 1) + time)
    parts = (
        f" embedded RocketMQ at {setting.nameserver}",
        f"; retries after {setting.delays} here",
        f" instead of {setting.usual_delays}",
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
    right = 1 + max(len(label) for label, _, _ in totals) + 9 if width >= NARROW else 0
    room = max(0, width - 18 - right - 2)
    rows = [
        ("in", f"{figures.in_rate:.0f}/s", figures.in_history, "cyan"),
        ("out", f"{figures.out_rate:.0f}/s", figures.out_history, "cyan"),
        ("lag", f"{account.behind:,}", figures.lag_history, "magenta"),
        ("", "", (), ""),
    ]
    top = max([*figures.in_history[-room:], *figures.out_history[-room:], 1.0]) if room else 1.0
    lines = []
    for (name, value, history, style), (label, total, color) in zip(rows, totals, strict=True):
        line = Text(f" {name:<4}{value:>8}" + GAP)
        peak = top if name != "lag" else max([*history[-room:], 1.0]) if room else 1.0
        line.append(spark(history, peak, room, ascii_only=ascii_only), style)
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
        line.append(f"{row.state.replace('_', ' '):<16}", STATE_STYLES.get(row.state, "dim"))
        committed = "-" if row.committed is None else f"{row.committed:,}"
        lines.append(line.append(f"{committed:>9}{row.lag:>8,}{row.cached:>8,}"))
    return [*(lines if figures.queues else [*lines, _nothing()]), Text()]


def _handled(figures: DemoFigures, width: int, height: int) -> list[Text]:
    if height < FEWEST_LISTED:
        return []
    lines = [Text(" LAST HANDLED", "dim")]
    for one in figures.handled[: height - 2]:
        customer, amount = one.described()
        line = Text(" " + set_cell_size(one_line(one.key), KEY_WIDTH))
        if width >= NARROW:
            line.append(set_cell_size(one_line(customer), max(8, min(20, width - 50))) + f"{amount:>11}" + GAP)
        line.append(set_cell_size(one.tag, 10), "dim")
        line.append(one.verdict, VERDICT_STYLES[one.verdict])
        lines.append(line.append(f" #{one.attempt}" if one.attempt > 1 else "", "dim"))
    return [*(lines if figures.handled else [*lines, _nothing()]), Text()]


def _dead_letters(figures: DemoFigures, width: int, height: int) -> list[Text]:
    if height < FEWEST_LISTED - 1:
        return []
    lines = [Text(" DEAD LETTERS", "dim")]
    for one in figures.dead_letters[: height - 1]:
        line = Text(" " + set_cell_size(one_line(one.key), KEY_WIDTH))
        lines.append(line.append(one_line(one.reason), "red"))
    return lines if figures.dead_letters else [*lines, _nothing()]


def _side_by_side(left: Sequence[Text], right: Sequence[Text]) -> Iterable[Text]:
    for one, other in zip_longest(left, right, fillvalue=Text()):
        line = one.copy()
        line.truncate(LEFT, pad=True)
        yield Text.assemble(line, other)


def _nothing() -> Text:
    return Text(" none", "dim")


def _hint(text: str) -> Text:
    return Text(" " + text, "bold")
