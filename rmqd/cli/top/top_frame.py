"""The screen content (frame) of `rmqd top`, and the state of the view: cursor, sort order, filter.

A frame fills the terminal with the daemon's last status. Keys and the results of the user's requests change the state
of the view. Colours, from the terminal's palette, add nothing to the text, so NO_COLOR loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from textwrap import wrap
from typing import Any, Final, Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from rmqd.cli.terminal.output import count
from rmqd.daemon.http.status_view import (
    GROUP_COLUMNS,
    QUEUE_COLUMNS,
    Fields,
    StatusColumn,
    call_time,
    cell,
    first_problem_text,
    number,
    rate,
    stall_lines,
    state_word,
    style_of,
)
from rmqd.runtime.figures import sum_of_known
from rmqd.runtime.live_screen import fill_screen
from rmqd.runtime.plain_text import format_age

MIN_NAME: Final = 8
TALL_SCREEN_LINES: Final = 20  # a screen with at least this many lines shows three lines of problems
FRAME_LINES: Final = 5  # lines other than rows and problems: two at the top, an empty line, the heading, the keys
KEYS: Final = "Enter queues  p pause  d diagnose  / filter  < > sort  ? help  q quit"
QUEUE_KEYS: Final = "Esc back  p pause queue  d diagnose  / filter  < > sort  ? help  q quit"
PAGE_KEYS: Final = "up, down, page up, page down  Esc back"


HELP: Final = (
    "up, down, j, k      move; page up and down, home and end too",
    "Enter, right        the queues of a group",
    "Esc, left           back",
    "<  >                sort by the column to the left or right",
    "r                   reverse the order",
    "/                   list only names or states with a text; Esc ends it",
    "p                   pause the group or queue, or resume it; asks first",
    "d                   rmqd diagnose of the group",
    "q, Ctrl-C           quit",
    "",
    "IN/S      messages from brokers per second, over the last 10 to 15 seconds",
    "OUT/S     attempts of the handler per second, whatever their outcome",
    "FAIL      its calls that failed per second; RETRY: messages sent back",
    "LAG, AGE  waiting messages, and the age of the oldest",
    "P50, P99  how long the handler's calls of the last minute took",
    "DEAD      dead letters since the daemon's start",
    "All figures are from /api/v1/status, for this daemon only.",
)


def key_of(row: Fields) -> str:
    """Return a text that identifies the group or queue of a row, so that the cursor stays on it in later documents."""
    return str(row["name"]) if "name" in row else f"{cell(row, 'topic')}@{row['broker']}:{row['queue']}:{row['worker']}"


def matching(rows: list[Fields], columns: tuple[StatusColumn, ...], wanted: str) -> list[Fields]:
    """Return the rows that contain `wanted`, ignoring case, in one of their text columns."""
    if not wanted:
        return rows
    names = [column for column in columns if column.is_text]
    return [row for row in rows if any(wanted.lower() in column.cell(row).lower() for column in names)]


def ordered(rows: list[Fields], column: StatusColumn, *, backward: bool) -> list[Fields]:
    """Sort rows by a column: texts from A to Z, numbers from the greatest; `backward` reverses. Unknown values last."""

    def known(row: Fields) -> bool:
        return column.of(row) is not None

    first = sorted(filter(known, rows), key=column.of, reverse=column.is_text == backward)
    return [*first, *(row for row in rows if not known(row))]


@dataclass(frozen=True, slots=True)
class ListState:
    """The state of a list: the key of the row under the cursor, the index of the column to sort by, and the filter."""

    columns: tuple[StatusColumn, ...]
    cursor: str = ""
    sort: int = 0
    backward: bool = False
    filter: str = ""

    def rows(self, found: list[Fields]) -> list[Fields]:
        """Return the rows that match the filter, sorted by the chosen column."""
        return ordered(matching(found, self.columns, self.filter), self.columns[self.sort], backward=self.backward)

    def at(self, rows: list[Fields]) -> int:
        """Return the index of the row under the cursor; 0 if that row is not in the list any more."""
        return next((place for place, row in enumerate(rows) if key_of(row) == self.cursor), 0)


@dataclass(frozen=True, slots=True)
class PauseRequest:
    """A request to pause or resume a group or queue. With `broker`, `queue` None means all queues on that broker."""

    action: Literal["pause", "resume"]
    group: str
    topic: str | None = None
    broker: str | None = None
    queue: int | None = None

    @property
    def meant(self) -> str:
        """The text that names the group or queue of the request."""
        return (
            self.group if self.topic is None else f"{self.topic} on {self.broker}, queue {self.queue}, of {self.group}"
        )


@dataclass(frozen=True, slots=True)
class DiagnoseRequest:
    """A user's request to run `rmqd diagnose` for a group and show its output."""

    group: str


@dataclass(frozen=True, slots=True)
class TextOverlay:
    """A text that covers the list: the help, or a command's output. `lines` is None while the command runs."""

    title: str
    lines: tuple[str, ...] | None
    first: int = 0


@dataclass(frozen=True, slots=True)
class ViewState:
    groups: ListState = ListState(GROUP_COLUMNS)
    queues: ListState = ListState(QUEUE_COLUMNS)
    group: str = ""
    """The group whose queues are listed; empty for the list of groups."""
    typed: str | None = None
    """The filter while the user types it; None otherwise."""
    question: PauseRequest | None = None
    """The request that the user must confirm; None if there is none."""
    pages: TextOverlay | None = None
    notice: str = ""
    """The result of the last request, shown until the next key."""
    page: int = 10
    """How many rows fit on the screen; page up and page down move by this number."""

    def with_output(self, lines: tuple[str, ...]) -> ViewState:
        """Return the state with a command's output; unchanged if the user has closed the overlay that waited for it."""
        if self.pages is None or self.pages.lines is not None:
            return self
        return replace(self, pages=replace(self.pages, lines=lines))

    @property
    def listing(self) -> ListState:
        """The list on the screen: a group's queues, or the groups."""
        return self.queues if self.group else self.groups

    def with_listing(self, **changes: Any) -> ViewState:
        """Return the state with some fields of the list on the screen replaced."""
        changed = replace(self.listing, **changes)
        return replace(self, queues=changed) if self.group else replace(self, groups=changed)

    def rows(self, document: dict[str, Any]) -> list[Fields]:
        """Return the filtered and sorted rows of the list on the screen."""
        return self.listing.rows(list(_queues(document, self.group) if self.group else document["groups"]))

    def chosen(self, document: dict[str, Any]) -> Fields | None:
        """Return the row under the cursor; None if the list is empty."""
        rows = self.rows(document)
        return rows[self.listing.at(rows)] if rows else None


def group_of(document: dict[str, Any], name: str) -> Fields | None:
    return next((group for group in document["groups"] if group["name"] == name), None)


def _queues(document: dict[str, Any], name: str) -> list[Fields]:
    group = group_of(document, name)
    return [] if group is None else group["queues"]


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """The size of the terminal, in columns and lines."""

    width: int
    height: int

    @property
    def rows(self) -> int:
        """How many rows of a list fit on the screen."""
        return max(1, self.height - FRAME_LINES - self.below)

    @property
    def below(self) -> int:
        """How many lines below the list show the problems of the row under the cursor."""
        return 3 if self.height >= TALL_SCREEN_LINES else 1


@dataclass(frozen=True, slots=True)
class LastStatus:
    """The daemon's last status document and its age, the error of the latest query or "", and the time of day."""

    document: dict[str, Any]
    age_seconds: float = 0.0
    error: str = ""
    time: str = ""


def frame(state: ViewState, last_status: LastStatus, size: TerminalSize) -> Group:
    lines = [*_head(last_status, size), Text()]
    room = max(1, size.height - len(lines) - 1 - size.below)
    if state.pages is not None:
        lines += _page(state, room + size.below)
    else:
        lines += _list(state, last_status.document, size, room)
    last = _last_line(state)
    for line in (*lines, last):
        line.truncate(size.width, overflow="ellipsis")
    return fill_screen(lines, [last], size.height)


def _head(last_status: LastStatus, size: TerminalSize) -> list[Text]:
    document = last_status.document
    workers = document.get("workers")
    parts = [f"{document['host']} pid {document['pid']}", f"up {format_age(document['uptime_seconds'])}"]
    parts += [] if workers is None else [count(len(workers), "worker")]
    title = Text.assemble((f" rmqd {document['version']}", "bold"), "  ", "  ".join(parts))
    right = last_status.time
    title.append(" " * max(2, size.width - title.cell_len - len(right) - 1) + right, "dim")
    if last_status.error:
        return [
            title,
            Text(f" no answer for {format_age(last_status.age_seconds)}, retrying: {last_status.error}", "bold red"),
        ]
    groups, problems = document["groups"], document.get("problems")
    rates = {name: sum(group["rates"][name] for group in groups) for name in ("received", "handled", "failed")}
    lag = sum_of_known(group["lag"] for group in groups)
    below = (
        f" {count(len(groups), 'group')}, {count(sum(len(group['queues']) for group in groups), 'queue')}, "
        f"lag {number(lag)}, in {rate(rates['received'])}/s, "
        f"out {rate(rates['handled'])}/s, failed {rate(rates['failed'])}/s"
    )
    return [title, *([Text(" " + "; ".join(problems), "bold red")] if problems else []), Text(below, "dim")]


def _list(state: ViewState, document: dict[str, Any], size: TerminalSize, room: int) -> list[Text]:
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
    name = max(MIN_NAME, min(rest, 2 + max([cell_len(columns[0].cell(row)) for row in rows], default=8)))
    lines.append(_heading(columns, name, listing.columns[listing.sort], backward=listing.backward))
    place, shown = listing.at(rows), max(1, room - 1)
    first = max(0, min(place - shown // 2, len(rows) - shown))
    for number_of_row, row in enumerate(rows[first : first + shown], first):
        line = _row(columns, name, row)
        if size.width - line.cell_len > 20 and not state.group:
            line.append(f"  {first_problem_text(row)}", "red")
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


def _said_below(state: ViewState, rows: list[Fields], place: int, size: TerminalSize) -> list[str]:
    """Return the lines below the list, with the problems of the row under the cursor."""
    said = "" if not rows else "\n".join(stall_lines([rows[place]])) if state.group else first_problem_text(rows[place])
    lines = wrap(said, max(20, size.width - 2), max_lines=size.below, placeholder=" …")
    return lines + [""] * (size.below - len(lines))


def _group_line(group: Fields) -> Text:
    word = state_word(group)
    rates = f"in {rate(group['rates']['received'])}/s, out {rate(group['rates']['handled'])}/s"
    figures = f"  lag {number(group['lag'])}, {rates}, p99 {call_time(group['recent_latency']['p99'])}"
    return Text.assemble((f" {group['name']}", "bold"), "  ", (word, style_of(word)), figures)


def _heading(columns: list[StatusColumn], name: int, sort: StatusColumn, *, backward: bool) -> Text:
    line = Text(" ")
    for index, column in enumerate(columns):
        title = f"{column.title}{'^' if column.is_text != backward else 'v'}" if column is sort else column.title
        line.append(_cell(title, column, name if index == 0 else column.width), "bold" if column is sort else "dim")
    return line


def _row(columns: list[StatusColumn], name: int, row: Fields) -> Text:
    line = Text(" ")
    for index, column in enumerate(columns):
        text = column.cell(row)
        style = style_of(str(column.of(row)), "dim") if column.title == "STATE" else ""
        line.append(_cell(text, column, name if index == 0 else column.width), style)
    return line


def _cell(text: str, column: StatusColumn, width: int) -> str:
    if not column.is_text:
        return text.rjust(width)
    return set_cell_size(text, width) if column.width == 0 else "  " + set_cell_size(text, width - 2)


def _page(state: ViewState, room: int) -> list[Text]:
    assert state.pages is not None
    lines = state.pages.lines
    shown = [" running ..."] if lines is None else [f" {line}" for line in lines[state.pages.first :][: room - 1]]
    return [Text(f" {state.pages.title}", "bold"), *map(Text, shown)]


def _last_line(state: ViewState) -> Text:
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
    """Return the local time of day for the top right corner of the screen."""
    return f"{datetime.now().astimezone():%H:%M:%S}"
