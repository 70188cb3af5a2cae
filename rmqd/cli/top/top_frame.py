"""The picture: as many lines as the terminal has, from the status document and the user's choices.

Colours are the terminal's own, and only repeat what words say, so that NO_COLOR loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from textwrap import wrap
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from rmqd.cli.terminal.output import count
from rmqd.cli.top.top_state import Fields, State, TopColumn, age, group_of, number, rate, state_word, took, trouble
from rmqd.daemon.http.daemon_status import stall_lines

STYLES: Final = {
    "running": "green", "handling": "green", "pulling": "green", "paused": "magenta", "retrying": "magenta",
    "flow_controlled": "magenta", "locked_out": "magenta", "draining": "magenta", "starting": "magenta",
    "failed": "bold red", "failing": "bold red", "stuck": "bold red",
}  # fmt: skip
LEAST_NAME: Final = 8
ROOMY: Final = 20  # a screen with so many lines shows three lines of problems
AROUND: Final = 5  # lines other than rows: two at the top, an empty one, the heading, the keys
KEYS: Final = "Enter queues  p pause  d diagnose  / filter  < > sort  ? help  q quit"
QUEUE_KEYS: Final = "Esc back  p pause queue  d diagnose  / filter  < > sort  ? help  q quit"
PAGE_KEYS: Final = "up, down, page up, page down  Esc back"


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """The size of the terminal, in columns and lines."""

    width: int
    height: int

    @property
    def rows(self) -> int:
        """The number of rows with room."""
        return max(1, self.height - AROUND - self.below)

    @property
    def below(self) -> int:
        """The number of lines for problems of the selected row."""
        return 3 if self.height >= ROOMY else 1


@dataclass(frozen=True, slots=True)
class LastStatus:
    """The daemon's last document, its age, and the error of later queries."""

    document: dict[str, Any]
    age_seconds: float = 0.0
    error: str = ""
    time: str = ""


def frame(state: State, last_status: LastStatus, size: TerminalSize) -> Group:
    """Return one picture."""
    lines = [*_head(last_status, size), Text()]
    room = max(1, size.height - len(lines) - 1 - size.below)
    if state.pages is not None:
        lines += _page(state, room + size.below)
    else:
        lines += _list(state, last_status.document, size, room)
    lines = [*lines[: size.height - 1], *([Text()] * (size.height - 1 - len(lines))), _last_line(state)]
    for line in lines:
        line.no_wrap = True
        line.truncate(size.width, overflow="ellipsis")
    return Group(*lines)


def _head(last_status: LastStatus, size: TerminalSize) -> list[Text]:
    document = last_status.document
    workers = document.get("workers")
    parts = [f"{document['host']} pid {document['pid']}", f"up {age(document['uptime_seconds'])}"]
    parts += [] if workers is None else [count(len(workers), "worker")]
    title = Text.assemble((f" rmqd {document['version']}", "bold"), "  ", "  ".join(parts))
    right = last_status.time
    title.append(" " * max(2, size.width - title.cell_len - len(right) - 1) + right, "dim")
    if last_status.error:
        return [
            title,
            Text(f" no answer for {age(last_status.age_seconds)}, retrying: {last_status.error}", "bold red"),
        ]
    if document.get("problems"):
        return [title, Text(" " + "; ".join(document["problems"]), "bold red")]
    groups = document["groups"]
    rates = {name: sum(group["rates"][name] for group in groups) for name in ("received", "handled", "failed")}
    lags = [group["lag"] for group in groups if group["lag"] is not None]
    below = (
        f" {count(len(groups), 'group')}, {count(sum(len(group['queues']) for group in groups), 'queue')}, "
        f"lag {number(sum(lags) if lags else None)}, in {rate(rates['received'])}/s, "
        f"out {rate(rates['handled'])}/s, failed {rate(rates['failed'])}/s"
    )
    return [title, Text(below, "dim")]


def _list(state: State, document: dict[str, Any], size: TerminalSize, room: int) -> list[Text]:
    listing, rows = state.listing, state.rows(document)
    columns = [column for column in listing.columns if column.from_width <= size.width]
    lines: list[Text] = []
    if state.group:
        group = group_of(document, state.group)
        lines.append(
            _group_line(group) if group else Text(f" {state.group} is no longer in the configuration", "bold red")
        )
        room -= 1
    rest = size.width - 1 - sum(column.width for column in columns)
    name = max(LEAST_NAME, min(rest, 2 + max([cell_len(_text(columns[0], row)) for row in rows], default=8)))
    lines.append(_heading(columns, name, listing.columns[listing.sort], backward=listing.backward))
    place, shown = listing.at(rows), max(1, room - 1)
    first = max(0, min(place - shown // 2, len(rows) - shown))
    for number_of_row, row in enumerate(rows[first : first + shown], first):
        line = _row(columns, name, row)
        if size.width - line.cell_len > 20 and not state.group:
            line.append(f"  {trouble(row)}", "red")
        if number_of_row == place:
            line.append(" " * max(0, size.width - line.cell_len))
            line.stylize("reverse")
        lines.append(line)
    if not rows:
        lines.append(
            Text(f" nothing contains {listing.filter!r}; Esc ends the filter" if listing.filter else " none", "dim")
        )
    lines += [Text()] * (room + bool(state.group) - len(lines))
    return [*lines, *(Text(f" {line}", "red") for line in _said_below(state, rows, place, size))]


def _said_below(state: State, rows: list[Fields], place: int, size: TerminalSize) -> list[str]:
    """Return the problems of the row under the cursor, on the lines below the list."""
    said = "" if not rows else "\n".join(stall_lines([dict(rows[place])])) if state.group else trouble(rows[place])
    lines = wrap(said, max(20, size.width - 2), max_lines=size.below, placeholder=" …")
    return lines + [""] * (size.below - len(lines))


def _group_line(group: Fields) -> Text:
    word = state_word(group)
    rates = f"in {rate(group['rates']['received'])}/s, out {rate(group['rates']['handled'])}/s"
    figures = f"  lag {number(group['lag'])}, {rates}, p99 {took(group['recent_latency']['p99'])}"
    return Text.assemble((f" {group['name']}", "bold"), "  ", (word, STYLES.get(word, "")), figures)


def _heading(columns: list[TopColumn], name: int, sort: TopColumn, *, backward: bool) -> Text:
    line = Text(" ")
    for index, column in enumerate(columns):
        title = f"{column.title}{'^' if column.is_text != backward else 'v'}" if column is sort else column.title
        line.append(_cell(title, column, name if index == 0 else column.width), "bold" if column is sort else "dim")
    return line


def _row(columns: list[TopColumn], name: int, row: Fields) -> Text:
    line = Text(" ")
    for index, column in enumerate(columns):
        text = _text(column, row)
        style = STYLES.get(str(column.value(row)), "dim") if column.title == "STATE" else ""
        line.append(_cell(text, column, name if index == 0 else column.width), style)
    return line


def _text(column: TopColumn, row: Fields) -> str:
    return column.text(column.value(row))


def _cell(text: str, column: TopColumn, width: int) -> str:
    if not column.is_text:
        return text.rjust(width)
    return set_cell_size(text, width) if column.width == 0 else "  " + set_cell_size(text, width - 2)


def _page(state: State, room: int) -> list[Text]:
    assert state.pages is not None
    lines = state.pages.lines
    shown = [" running ..."] if lines is None else [f" {line}" for line in lines[state.pages.first :][: room - 1]]
    return [Text(f" {state.pages.title}", "bold"), *map(Text, shown)]


def _last_line(state: State) -> Text:
    if state.question is not None:
        return Text(f" {state.question.action} {state.question.meant}? y/n", "bold reverse")
    if state.typed is not None:
        return Text(f" /{state.typed}_", "bold")
    if state.notice:
        return Text(f" {state.notice}", "bold")
    if state.pages is not None:
        return Text(f" {PAGE_KEYS}", "dim")
    filtered = f"/{state.listing.filter}  " if state.listing.filter else ""
    return Text(f" {filtered}{QUEUE_KEYS if state.group else KEYS}", "dim")


def clock_time() -> str:
    """Return the time of day, for the picture's corner."""
    return f"{datetime.now().astimezone():%H:%M:%S}"
