"""docs/proof/push-consumer.md against the parts of Java's push consumer, and against the names that rmqd really has."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import rmqd
from rmqd.cli.app import command_line
from rmqd.config.model.forms import keys_of, model_at, place_of_java_name
from rmqd.config.model.java_names import REASONS, find_entry, word_of_constant
from rmqd.config.model.root_model import RootConfig
from rmqd.daemon.metrics.exposition import METRIC_SPECS
from tests.docs.java_push_consumer import names

TOP = Path(__file__).parents[2]
QUOTED = re.compile(r"`([^`]+)`")
METRICS = METRIC_SPECS.keys()
IN_YAML = ("MessageModel.", "ConsumeFromWhere.", "ConsumeConcurrentlyStatus.", "ConsumeOrderlyStatus.")


def rows(page: str) -> list[list[str]]:
    """The cells of every row that begins with names of Java."""
    lines = (TOP / "docs" / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| `")]


PAGE = rows("proof/push-consumer.md")


def test_every_part_has_one_row_and_no_row_is_left_open() -> None:
    listed = Counter(name for cells in PAGE for name in QUOTED.findall(cells[0]))
    migrating = {name.rpartition(".")[2] for cells in rows("migrating.md") for name in QUOTED.findall(cells[0])}

    assert listed == Counter(names(but="settings: "))
    assert set(names("settings: ")) <= migrating
    assert [cells for cells in PAGE if len(cells) != 3 or (cells[1] == "none" and not cells[2].strip(" |"))] == []
    assert [cells for cells in PAGE if cells[1] != "none" and not QUOTED.findall(cells[1])] == []


def test_every_counterpart_exists() -> None:
    rooms = (
        (TOP / "rmqd").glob("*.py"),
        *(
            (TOP / "rmqd" / room).rglob("*.py")
            for room in ("client", "consumer", "errors", "handler_api", "operate", "wire")
        ),
    )
    source = "".join(path.read_text() for path in itertools.chain(*rooms))
    events_and_constants = set(re.findall(r'"([a-z_]+\.[a-z_]+)"|^([A-Z_]+)\b.* = ', source, re.MULTILINE))
    named = {name for pair in events_and_constants for name in pair} | METRICS
    classes: dict[str, str] = defaultdict(str)
    for text in re.split(r"(?m)^(?=class )", source):
        classes[re.split(r"[(:\[]", text[6:], maxsplit=1)[0]] += text
    counterparts = {name for cells in PAGE for name in QUOTED.findall(cells[1])}

    def is_there(name: str) -> bool:
        return name in named or is_key(name) or is_command(name) or is_in_class(classes, name)

    assert {name for name in counterparts if not is_there(name)} == set()


def test_every_setting_and_constant_of_java_is_known_in_a_configuration() -> None:
    settings = [*names("settings"), *names("system properties")]
    constants = [name for name in names("statuses") if name.startswith(IN_YAML)]

    assert len(constants) == 14
    assert [name for name in constants if word_of_constant(name) is None] == []
    assert [name for name in settings if not (place_of_java_name(RootConfig, name) or find_entry(name, REASONS))] == []


def is_key(name: str) -> bool:
    """Whether the name is a key of a group or of the root, optionally with one of its values."""
    key, _, value = name.partition(": ")
    for section in ((), ("groups", "NAME")):
        path = (*section, *key.split("."))
        model = model_at(RootConfig, path[:-1])
        field = None if model is None else keys_of(model).get(path[-1])
        if field is not None:
            return not value or value in repr(field)
    return False


def is_command(name: str) -> bool:
    first, *words = name.split()
    if first != "rmqd" or not words:
        return False
    command: Any = command_line()
    for word in words:
        command = vars(command).get("commands", {}).get(word)
    return command is not None


def is_in_class(classes: dict[str, str], name: str) -> bool:
    """Whether the name is a class, a member of a class, or a name of the public API."""
    first, _, member = name.partition(".")
    text = classes.get("Batch" if first == "batch" else first)
    return member in rmqd.__all__ if first == "rmqd" else bool(text and re.search(rf"\b{member}\b", text))
