"""docs/log-events.md lists every event that the program logs, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
LEVELS = {"exception": "error"} | {name: name for name in ("debug", "info", "warning", "error", "critical")}


@pytest.fixture(scope="module")
def logged() -> list[tuple[str, str, str]]:
    """Event, level and place of every call of a logger."""
    return list(_logged())


def _logged() -> Iterator[tuple[str, str, str]]:
    for path in sorted((TOP / "rmqd").rglob("*.py")):
        text = path.read_text()
        if not re.search(r"log(ger)?\.", text):  # half of the modules; parsing takes most of the time
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            owner = ast.unparse(node.func.value).rpartition(".")[2]
            if node.func.attr in (*LEVELS, "log") and owner.strip("_") in ("log", "logger"):
                event = getattr(node.args[node.func.attr == "log"], "value", None)  # log(level, event)
                assert isinstance(event, str), f"{path}:{node.lineno}: event names are literals"
                yield event, LEVELS.get(node.func.attr, ""), f"{path.relative_to(TOP)}:{node.lineno}"


def test_the_document_lists_every_event_with_its_level(logged: list[tuple[str, str, str]]) -> None:
    """The document must be enough to write an alert."""
    rows = re.findall(r"^\| `([\w.]+)` \| ([\w, ]+) \|", (TOP / "docs" / "log-events.md").read_text(), re.MULTILINE)
    documented = {event: set(levels.split(", ")) for event, levels in rows}
    found: dict[str, set[str]] = {}
    for event, level, _ in logged:
        found.setdefault(event, set()).update([level] if level else documented.get(event, ()))
    assert documented == found


def test_event_names_are_words_without_values(logged: list[tuple[str, str, str]]) -> None:
    """A name is a subject and a past participle; values are fields. One name is older than this rule."""
    for event, _, place in logged:
        assert event == "group_held_elsewhere" or re.fullmatch(r"[a-z_]+\.[a-z_]+", event), place
