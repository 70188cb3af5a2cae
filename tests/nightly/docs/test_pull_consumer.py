"""docs/pull-consumer.md against the public methods of Java's pull consumers, RocketMQ 5.5.0 (by javap)."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
METHODS = (HERE / "java_pull_methods.txt").read_text()


def test_every_method_of_java_has_a_counterpart_or_a_reason() -> None:
    page = (HERE.parents[2] / "docs" / "pull-consumer.md").read_text()
    cells = re.findall(r"^\| (`.*?) \| \S", page.partition("## Java's methods")[2], re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    methods = {name for line in METHODS.splitlines() if not line.startswith("#") for name in line.split()}

    assert {*named} == methods
    assert len(named) == len(methods)
