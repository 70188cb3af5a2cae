"""The table of `make bench-spark`, with the measured figures of each goal."""

from __future__ import annotations

from functools import partial

import pytest

from tests.spark.needed import need

need("pyspark", "pyarrow")

from bench import spark_source  # noqa: E402
from bench.spark_source import ENGINE, FLOOR, KAFKA, MAP, RAW, Measured, report  # noqa: E402


def measured(**figures: list[float]) -> Measured:
    return Measured(0, {"all columns": [400.0, 500.0, 450.0], RAW: [1000.0], **figures})


def test_the_table_shows_met_and_missed_goals() -> None:
    """Medians are compared with a minimum or a maximum. Goals without figures are left out."""
    lines = [
        [cell.strip() for cell in line.split("|")[2:-1]]
        for line in report(
            measured(**{KAFKA: [900.0], spark_source.DELAY: [150.0], FLOOR: [100.0]}), 2_000_000, 3
        ).splitlines()
        if "against" in line
    ]
    assert lines == [
        ["450", "1,000", "0.45", "≥ 0.6", "MISSED"],
        ["450", "900", "0.50", "≥ 1", "MISSED"],
        ["150", "100", "1.50", "≤ 1.5", "met"],
    ]
    assert "mapInArrow alone" in report(measured(**{ENGINE: [7.0], MAP: [10.0]}), 1, 1)


def test_other_work_on_the_machine_is_reported() -> None:
    """It makes the figures unreliable."""
    disturbed = measured()
    assert "other work" not in report(disturbed, 1, 1)
    disturbed.foreign = 0.4
    assert "other work had up to 40% of the machine" in report(disturbed, 1, 1)


def test_contenders_take_turns_after_a_first_run_that_does_not_count() -> None:
    """The CPU time of their processes per message is measured too."""
    calls: list[str] = []

    def contender(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    found = Measured(0)
    found.take_turns({name: partial(contender, name) for name in "ab"}, 2, list, 10)
    assert calls == list("ababab")
    assert found.figures == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
    assert found.median("a") == pytest.approx(4.0)
    assert found.median("c") is None
    assert len(found.microseconds["a"]) == 2
