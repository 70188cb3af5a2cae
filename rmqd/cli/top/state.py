"""The user's choices. Only keys change them (`press`), never the daemon's data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from rmqd.cli.top.columns import GROUP_COLUMNS, QUEUE_COLUMNS, Column, Fields, key_of, matching, ordered


@dataclass(frozen=True, slots=True)
class Listing:
    """A list with its cursor, order and filter."""

    columns: tuple[Column, ...]
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
