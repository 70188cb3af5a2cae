"""docs/log-events.md lists every event that the program logs, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
LEVELS = {"exception": "error"} | {name: name for name in ("debug", "info", "warning", "error", "critical")}


def logged() -> Iterator[tuple[str, str, str]]:
    """Event, level and place of every call of a logger."""
    for path in sorted((TOP / "rmqd").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            owner = ast.unparse(node.func.value).rpartition(".")[2]
            if node.func.attr in LEVELS and owner.strip("_") in ("log", "logger"):
                event = getattr(node.args[0], "value", None)
                assert isinstance(event, str), f"{path}:{node.lineno}: event names are literals"
                yield event, LEVELS[node.func.attr], f"{path.relative_to(TOP)}:{node.lineno}"


@pytest.mark.slow
def test_the_document_lists_every_event_with_its_level() -> None:
    """An alert may be written from the document alone."""
    rows = re.findall(r"^\| `([\w.]+)` \| ([\w, ]+) \|", (TOP / "docs" / "log-events.md").read_text(), re.MULTILINE)
    documented = {event: set(levels.split(", ")) for event, levels in rows}
    found: dict[str, set[str]] = {}
    for event, level, _ in logged():
        found.setdefault(event, set()).add(level)
    assert documented == found


@pytest.mark.slow
def test_event_names_are_words_without_values() -> None:
    """Subject and what happened; the facts are fields. One name is older than that rule."""
    for event, _, place in logged():
        assert event == "group_held_elsewhere" or re.fullmatch(r"[a-z_]+\.[a-z_]+", event), place
