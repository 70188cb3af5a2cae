"""Declarations of the behaviour that a test proves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

MARKER = "behaviour"
AREAS = {
    "starting offsets": "Start offsets",
    "rebalance": "Queue ownership",
    "strategies": "Allocate strategies",
    "retries": "Concurrent consumption, retries and dead letters",
    "pop": "POP",
    "lite": "Lite topics",
    "messages": "Messages in a handler",
    "offsets": "Offsets",
    "flow control": "Flow control",
    "orderly": "Orderly consumption",
    "broadcasting": "Broadcasting",
    "filters": "Filters",
    "proxy": "RocketMQ's proxy, remoting port",
    "operators": "Operator commands",
    "queues": "Topic and queue changes",
    "hooks": "Hooks",
    "sending": "Messages of `rmqd send`",
}
"""The headings of the page by the areas' short names, in the order of the page."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A row of docs/proof/conformance.md. `tests/conformance/__init__.py` describes the fields."""

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
            raise ValueError(f"unknown area {self.area!r}; expected one of {', '.join(AREAS)}")
        for cell in (self.title, self.java, self.rmqd, self.checked):
            if not cell or "|" in cell or "\n" in cell:
                raise ValueError(f"{cell!r} is not a valid table cell; expected one line without |, not empty")


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
    """Return a decorator that makes a test the proof of a row."""
    return pytest.mark.behaviour(Behaviour(area, title, java, rmqd, checked, differs, since, embedded, long))


def declared_by(marks: list[pytest.Mark]) -> list[Behaviour]:
    """Return the declarations among a test's marks, in their order above the test."""
    return [mark.args[0] for mark in reversed(marks) if mark.name == MARKER]
