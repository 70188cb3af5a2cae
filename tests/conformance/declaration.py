"""What a test says that it proves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

MARKER = "behaviour"
AREAS = {
    "starting offsets": "Where a group starts",
    "rebalance": "Who owns which queue",
    "strategies": "Allocate strategies",
    "retries": "Concurrent consumption, retries and dead letters",
    "pop": "POP",
    "lite": "Lite topics",
    "messages": "What a handler sees",
    "offsets": "Offsets",
    "flow control": "Flow control",
    "orderly": "Orderly consumption",
    "broadcasting": "Broadcasting",
    "filters": "Filters",
    "proxy": "Through RocketMQ's proxy, by its remoting port",
    "operators": "Answers to operators",
    "queues": "Course of a queue",
    "hooks": "Hooks",
    "sending": "What `rmqd send` stores",
}
"""The areas by their short names, with the headings of the page, in its order."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A row of docs/proof/conformance.md; the fields as `tests/conformance/__init__.py` says."""

    area: str
    title: str
    java: str
    rmqd: str
    checked: str
    differs: str = ""
    since: str = ""
    embedded: str = ""
    long: bool = False

    def __post_init__(self) -> None:
        if self.area not in AREAS:
            raise ValueError(f"no area {self.area!r}; accepted: {', '.join(AREAS)}")
        for cell in (self.title, self.java, self.rmqd, self.checked):
            if not cell or "|" in cell or "\n" in cell:
                raise ValueError(f"a cell of a table is one line without |, and not empty: {cell!r}")


def behaviour(
    area: str,
    title: str,
    *,
    java: str,
    rmqd: str,
    checked: str,
    differs: str = "",
    since: str = "",
    embedded: str = "",
    long: bool = False,
) -> pytest.MarkDecorator:
    """A decorator that makes a test the proof of a row."""
    return pytest.mark.behaviour(Behaviour(area, title, java, rmqd, checked, differs, since, embedded, long))


def declared_by(marks: list[pytest.Mark]) -> list[Behaviour]:
    """The declarations among a test's marks, in the order in which they stand above it."""
    return [mark.args[0] for mark in reversed(marks) if mark.name == MARKER]
