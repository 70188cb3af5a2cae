"""The columns of the two lists: their texts for a group or a queue, and their sort keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmqd.daemon.http.status_text import cell, problem_line, state_text

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
class Column:
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
    Column("GROUP", 0, lambda group: group["name"], is_text=True),
    Column("STATE", 9, state_word, is_text=True),
    Column("IN/S", 6, lambda group: group["rates"]["received"], rate),
    Column("OUT/S", 6, lambda group: group["rates"]["handled"], rate),
    Column("FAIL", 6, lambda group: group["rates"]["failed"], rate, from_width=100),
    Column("RETRY", 6, lambda group: group["rates"]["retried"], rate),
    Column("LAG", 7, lambda group: group["lag"], number),
    Column("AGE", 7, lambda group: group["lag_seconds"], age),
    Column("P50", 6, lambda group: group["recent_latency"]["p50"], took),
    Column("P99", 6, lambda group: group["recent_latency"]["p99"], took),
    Column("DEAD", 6, lambda group: group["dead_letters"]["total"], number),
    Column("QUEUES", 7, lambda group: len(group["queues"]), number, from_width=100),
    Column("MEMBERS", 8, lambda group: group["member_count"], number, from_width=110),
)
QUEUE_COLUMNS: Final = (
    Column("TOPIC", 0, lambda queue: cell(dict(queue), "topic"), is_text=True),
    Column("BROKER", 12, lambda queue: queue["broker"], is_text=True),
    Column("QUEUE", 7, lambda queue: queue["queue"], lambda value: "any" if value < 0 else str(value)),
    Column("STATE", 17, lambda queue: queue["state"], lambda value: value.replace("_", " "), is_text=True),
    Column("COMMITTED", 11, lambda queue: queue["committed"], _whole),
    Column("MAX", 11, lambda queue: queue["max"], _whole, from_width=100),
    Column("LAG", 7, lambda queue: queue["lag"], number),
    Column("AGE", 7, lambda queue: queue["lag_seconds"], age),
    Column("CACHED", 7, lambda queue: queue["cached"], number, from_width=90),
    Column("WORKER", 7, lambda queue: queue["worker"], _whole, from_width=100),
)


def key_of(row: Fields) -> str:
    """Return the key that identifies a row while the list around it changes."""
    return (
        str(row["name"])
        if "name" in row
        else f"{cell(dict(row), 'topic')}@{row['broker']}:{row['queue']}:{row['worker']}"
    )


def matching(rows: list[Fields], columns: tuple[Column, ...], wanted: str) -> list[Fields]:
    """Return the rows with a text among their names and states."""
    if not wanted:
        return rows
    names = [column for column in columns if column.is_text]
    return [row for row in rows if any(wanted.lower() in column.text(column.value(row)).lower() for column in names)]


def ordered(rows: list[Fields], column: Column, *, backward: bool) -> list[Fields]:
    """Return the rows by a column: texts from A to Z, numbers from the greatest, or `backward`; unknown last."""

    def known(row: Fields) -> bool:
        return column.value(row) is not None

    first = sorted(filter(known, rows), key=column.value, reverse=column.is_text == backward)
    return [*first, *(row for row in rows if not known(row))]
