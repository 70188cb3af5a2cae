"""The columns of the two lists: their texts for a group or a queue, and their sort keys.

The user's choices. Only keys change them (`press`), never the daemon's data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from rmqd.daemon.http.daemon_status import cell, problem_line, state_text

Fields = Mapping[str, Any]
"""A group or a queue of the status document."""


def number(value: int | None) -> str:
    """Return a count in at most six characters: `12,345`, `123k`, `1.2M`."""
    if value is None:
        return "-"
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= max(size, 10**5):
            return f"{value / size:.1f}{unit}" if value < 10 * size else f"{value // size:,}{unit}"
    return f"{value:,}"


def rate(per_second: float) -> str:
    """Return a rate: `0`, `0.4`, `12.3`, `1,234`."""
    if per_second == 0:
        return "0"
    if per_second >= 9999.5:
        return f"{per_second / 1000:.1f}k" if per_second < 99_950 else number(round(per_second))
    return f"{per_second:.1f}" if per_second < 99.95 else f"{round(per_second):,}"


def age(seconds: float | None) -> str:
    """Return an age in at most six characters: `0s`, `0.4s`, `12s`, `7m12s`, `3h05m`, `2d23h`."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f}s" if seconds >= 0.05 else "0s"
    whole = int(seconds)
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return (
                f"{whole // size}{unit}{whole % size // below:02}{small}"
                if whole < 100 * size
                else f"{whole // size}{unit}"
            )
    return f"{whole}s"


def took(seconds: float | None) -> str:
    """Return the duration of a call: `0.2ms`, `12ms`, `1.2s`, `35s`."""
    if seconds is None:
        return "-"
    if seconds < 0.01:
        return f"{seconds * 1000:.1f}ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 10 else age(seconds)


@dataclass(frozen=True, slots=True)
class TopColumn:
    """One column. `width` includes the gap before it; the first column takes the remaining width."""

    title: str
    width: int
    value: Callable[[Fields], Any]
    """The sort key of the list."""
    text: Callable[[Any], str] = str
    from_width: int = 0
    """The minimum width of the terminal, in characters."""
    is_text: bool = False
    """Texts are left-aligned and sorted from A to Z; numbers from the greatest."""


def trouble(group: Fields) -> str:
    """Return the first problem of a group; empty if there is none."""
    if group["failure"] or group["not_ready_reason"]:
        return str(group["failure"] or group["not_ready_reason"])
    active = [finding for finding in group["findings"] if finding["state"] == "active"]
    if active:
        return problem_line(active[0])
    return f"last error: {group['last_error']['error']}" if group["last_error"] and group["rates"]["failed"] else ""


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)


def state_word(group: Fields) -> str:
    """Return a group's state in a word: an operator's actions before problems."""
    told = state_text(dict(group))
    for word, sign in (("paused", "paused"), ("failing", "failing"), ("stuck", "every queue is stuck")):
        if group["state"] == "running" and sign in told:
            return word
    return str(group["state"])


GROUP_COLUMNS: Final = (
    TopColumn("GROUP", 0, lambda group: group["name"], is_text=True),
    TopColumn("STATE", 9, state_word, is_text=True),
    TopColumn("IN/S", 6, lambda group: group["rates"]["received"], rate),
    TopColumn("OUT/S", 6, lambda group: group["rates"]["handled"], rate),
    TopColumn("FAIL", 6, lambda group: group["rates"]["failed"], rate, from_width=100),
    TopColumn("RETRY", 6, lambda group: group["rates"]["retried"], rate),
    TopColumn("LAG", 7, lambda group: group["lag"], number),
    TopColumn("AGE", 7, lambda group: group["lag_seconds"], age),
    TopColumn("P50", 6, lambda group: group["recent_latency"]["p50"], took),
    TopColumn("P99", 6, lambda group: group["recent_latency"]["p99"], took),
    TopColumn("DEAD", 6, lambda group: group["dead_letters"]["total"], number),
    TopColumn("QUEUES", 7, lambda group: len(group["queues"]), number, from_width=100),
    TopColumn("MEMBERS", 8, lambda group: group["member_count"], number, from_width=110),
)
QUEUE_COLUMNS: Final = (
    TopColumn("TOPIC", 0, lambda queue: cell(dict(queue), "topic"), is_text=True),
    TopColumn("BROKER", 12, lambda queue: queue["broker"], is_text=True),
    TopColumn("QUEUE", 7, lambda queue: queue["queue"], lambda value: "any" if value < 0 else str(value)),
    TopColumn("STATE", 17, lambda queue: queue["state"], lambda value: value.replace("_", " "), is_text=True),
    TopColumn("COMMITTED", 11, lambda queue: queue["committed"], _whole),
    TopColumn("MAX", 11, lambda queue: queue["max"], _whole, from_width=100),
    TopColumn("LAG", 7, lambda queue: queue["lag"], number),
    TopColumn("AGE", 7, lambda queue: queue["lag_seconds"], age),
    TopColumn("CACHED", 7, lambda queue: queue["cached"], number, from_width=90),
    TopColumn("WORKER", 7, lambda queue: queue["worker"], _whole, from_width=100),
)


def key_of(row: Fields) -> str:
    """Return the key that identifies a row while the list around it changes."""
    return (
        str(row["name"])
        if "name" in row
        else f"{cell(dict(row), 'topic')}@{row['broker']}:{row['queue']}:{row['worker']}"
    )


def matching(rows: list[Fields], columns: tuple[TopColumn, ...], wanted: str) -> list[Fields]:
    """Return the rows with a text among their names and states."""
    if not wanted:
        return rows
    names = [column for column in columns if column.is_text]
    return [row for row in rows if any(wanted.lower() in column.text(column.value(row)).lower() for column in names)]


def ordered(rows: list[Fields], column: TopColumn, *, backward: bool) -> list[Fields]:
    """Return the rows by a column: texts from A to Z, numbers from the greatest, or `backward`; unknown last."""

    def known(row: Fields) -> bool:
        return column.value(row) is not None

    first = sorted(filter(known, rows), key=column.value, reverse=column.is_text == backward)
    return [*first, *(row for row in rows if not known(row))]


@dataclass(frozen=True, slots=True)
class Listing:
    """A list with its cursor, order and filter."""

    columns: tuple[TopColumn, ...]
    cursor: str = ""
    sort: int = 0
    backward: bool = False
    filter: str = ""

    def rows(self, found: list[Fields]) -> list[Fields]:
        """Return the rows as they are listed."""
        return ordered(matching(found, self.columns, self.filter), self.columns[self.sort], backward=self.backward)

    def at(self, rows: list[Fields]) -> int:
        """Return the index of the cursor among the rows; the first if its row is missing."""
        return next((place for place, row in enumerate(rows) if key_of(row) == self.cursor), 0)


@dataclass(frozen=True, slots=True)
class Switch:
    """A request to pause or resume a group, or one queue of it."""

    action: Literal["pause", "resume"]
    group: str
    topic: str | None = None
    broker: str | None = None
    queue: int | None = None

    @property
    def meant(self) -> str:
        """The subject of the request as text."""
        return (
            self.group if self.topic is None else f"{self.topic} on {self.broker}, queue {self.queue}, of {self.group}"
        )


@dataclass(frozen=True, slots=True)
class Diagnose:
    """A request to show `rmqd diagnose` of a group."""

    group: str


@dataclass(frozen=True, slots=True)
class Pages:
    """A text over the lists: help, or the output of a command. `lines` is None while the command runs."""

    title: str
    lines: tuple[str, ...] | None
    first: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """All choices."""

    groups: Listing = Listing(GROUP_COLUMNS)
    queues: Listing = Listing(QUEUE_COLUMNS)
    group: str = ""
    """The group whose queues are listed; empty for the list of groups."""
    typed: str | None = None
    """The filter that is being typed."""
    question: Switch | None = None
    """The request that waits for confirmation."""
    pages: Pages | None = None
    notice: str = ""
    """The result of the last request."""
    page: int = 10
    """The number of rows in the last picture."""

    @property
    def listing(self) -> Listing:
        """The list that is shown."""
        return self.queues if self.group else self.groups

    def with_listing(self, **changes: Any) -> State:
        """Return the state with changes to the list that is shown."""
        changed = replace(self.listing, **changes)
        return replace(self, queues=changed) if self.group else replace(self, groups=changed)

    def rows(self, document: dict[str, Any]) -> list[Fields]:
        """Return the rows of the list that is shown."""
        return self.listing.rows(list(_queues(document, self.group) if self.group else document["groups"]))

    def chosen(self, document: dict[str, Any]) -> Fields | None:
        """Return the row under the cursor."""
        rows = self.rows(document)
        return rows[self.listing.at(rows)] if rows else None


def group_of(document: dict[str, Any], name: str) -> Fields | None:
    """Return a group of the document, by name."""
    return next((group for group in document["groups"] if group["name"] == name), None)


def _queues(document: dict[str, Any], name: str) -> list[Fields]:
    group = group_of(document, name)
    return [] if group is None else group["queues"]


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
