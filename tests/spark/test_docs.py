"""The options and columns in docs/spark.md and docs/from-kafka.md."""

from __future__ import annotations

import re
from pathlib import Path

from rmqd.spark.sink import sink_rows as sink_options
from rmqd.spark.source.source_columns import COLUMN_TYPES, VALUE_COLUMNS
from rmqd.spark.source.source_options import SOURCE_OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "spark.md").read_text()


def section(title: str, page: str = PAGE) -> str:
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_option_is_listed_and_no_other() -> None:
    """Options are in the first column. Two of them share a line, and an alias is in the line of its option."""
    rows = re.findall(r"^\| (`.*?) \|", section("Options"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted([*listed, "maxRowsPerTrigger"]) == sorted(SOURCE_OPTIONS)
    assert "`maxRowsPerTrigger`" in section("Options")


def test_every_column_is_listed_with_its_type_and_content() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (.*) \|$", section("Columns"), re.MULTILINE)
    assert {name: (kind, text) for name, kind, text in rows} == COLUMN_TYPES


def test_the_names_that_replace_kafkas_names_exist() -> None:
    """The second column has rmqd's names, and "the same" if Kafka's name is the same."""
    page = (DOCS / "from-kafka.md").read_text()
    known = {
        "Options of the source": {*SOURCE_OPTIONS},
        "Columns": {*COLUMN_TYPES},
        "The sink": {*sink_options.SINK_OPTIONS, *COLUMN_TYPES},
    }
    for title, names in known.items():
        rows = re.findall(r"^\| (.*?) \| (.*?) \|", section(title, page), re.MULTILINE)[2:]
        assert rows
        for kafkas, ours in rows:
            named = re.findall(r"`([^` ]+)`", kafkas if ours == "the same" else ours)
            assert set(named) - {"string", "binary"} <= names, (title, ours)


def test_the_columns_of_bodies_are_listed() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*) \|$", section("Bodies as columns"), re.MULTILINE)
    assert {name: (kind, text) for name, kind, text in rows} == VALUE_COLUMNS
