"""What the person who watches has chosen. It changes by keys alone (`press`), and never by what the daemon says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from rmqd.cli.top.columns import GROUP_COLUMNS, QUEUE_COLUMNS, Column, Fields, key_of, matching, ordered


@dataclass(frozen=True, slots=True)
class Listing:
    """A list: where the cursor is, its order, and what it is narrowed to."""

    columns: tuple[Column, ...]
    cursor: str = ""
    sort: int = 0
    backward: bool = False
    filter: str = ""

    def rows(self, found: list[Fields]) -> list[Fields]:
        """The rows as they are listed."""
        return ordered(matching(found, self.columns, self.filter), self.columns[self.sort], backward=self.backward)

    def at(self, rows: list[Fields]) -> int:
        """The place of the cursor among the rows; the first where its row is gone."""
        return next((place for place, row in enumerate(rows) if key_of(row) == self.cursor), 0)


@dataclass(frozen=True, slots=True)
class Switch:
    """A pause or a resume of a group, or of one queue of it."""

    action: Literal["pause", "resume"]
    group: str
    topic: str | None = None
    broker: str | None = None
    queue: int | None = None

    @property
    def meant(self) -> str:
        """What it is about, for people."""
        return (
            self.group if self.topic is None else f"{self.topic} on {self.broker}, queue {self.queue}, of {self.group}"
        )


@dataclass(frozen=True, slots=True)
class Diagnose:
    """`rmqd diagnose` of a group, to be shown."""

    group: str


@dataclass(frozen=True, slots=True)
class Pages:
    """A text over the lists: help, or what a command printed. `lines` is None while the command runs."""

    title: str
    lines: tuple[str, ...] | None
    first: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """Everything chosen."""

    groups: Listing = Listing(GROUP_COLUMNS)
    queues: Listing = Listing(QUEUE_COLUMNS)
    group: str = ""
    """The group whose queues are listed; empty for the list of groups."""
    typed: str | None = None
    """A filter that is being typed."""
    question: Switch | None = None
    """What waits for a yes."""
    pages: Pages | None = None
    notice: str = ""
    """What came of the last thing that was asked for."""
    page: int = 10
    """The rows that the last picture had room for."""

    @property
    def listing(self) -> Listing:
        """The list that is shown."""
        return self.queues if self.group else self.groups

    def with_listing(self, **changes: Any) -> State:
        """With the list that is shown changed."""
        changed = replace(self.listing, **changes)
        return replace(self, queues=changed) if self.group else replace(self, groups=changed)

    def rows(self, document: dict[str, Any]) -> list[Fields]:
        """The rows of the list that is shown."""
        return self.listing.rows(list(_queues(document, self.group) if self.group else document["groups"]))

    def chosen(self, document: dict[str, Any]) -> Fields | None:
        """The row under the cursor."""
        rows = self.rows(document)
        return rows[self.listing.at(rows)] if rows else None


def group_of(document: dict[str, Any], name: str) -> Fields | None:
    """A group of the document, by its name."""
    return next((group for group in document["groups"] if group["name"] == name), None)


def _queues(document: dict[str, Any], name: str) -> list[Fields]:
    group = group_of(document, name)
    return [] if group is None else group["queues"]


HELP: Final = (
    "up, down, j, k      move; page up and down, home and end too",
    "Enter, right        the queues of a group",
    "Esc, left           back",
    "<  >                sort by the column to the left or right",
    "r                   the other way round",
    "/                   list what has a text in its name or state; Esc ends it",
    "p                   pause the group or queue, or resume it; asks first",
    "d                   rmqd diagnose of the group",
    "q, Ctrl-C           quit",
    "",
    "IN/S      messages from brokers per second, over the last 10 to 15 seconds",
    "OUT/S     attempts of the handler per second, whatever came of them",
    "FAIL      its calls that failed per second; RETRY: messages sent back",
    "LAG, AGE  messages that wait, and the age of the oldest",
    "P50, P99  how long the handler's calls of the last minute took",
    "DEAD      dead letters since the daemon's start",
    "All of it is what /api/v1/status says, of this daemon alone.",
)
