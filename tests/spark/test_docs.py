"""docs/spark.md lists what there is."""

from __future__ import annotations

import re
from pathlib import Path

from rmqd.spark.source.columns import COLUMNS
from rmqd.spark.source.options import NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_option_is_listed_and_no_other() -> None:
    """In the first column; two of them share a line, and an alias stands in its option's."""
    rows = re.findall(r"^\| (`.*?) \|", section("Options"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted([*listed, "maxRowsPerTrigger"]) == sorted(NAMES)
    assert "`maxRowsPerTrigger`" in section("Options")


def test_every_column_is_listed_with_its_type() -> None:
    """And what it holds."""
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \| (.*) \|$", section("Columns"), re.MULTILINE)
    assert {name: (kind, text) for name, kind, text in rows} == COLUMNS
