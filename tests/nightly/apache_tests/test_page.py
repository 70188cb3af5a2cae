"""The page about RocketMQ's own tests, compared with the stored results."""

from __future__ import annotations

from tests.nightly.apache_tests import results
from tests.rocketmq import release


def test_the_page_has_the_table_of_the_stored_results() -> None:
    text = results.PAGE.read_text()

    assert results.BEGIN + results.table(results.load()) + results.END in text


def test_the_table_counts_tests_that_pass_on_each_broker_and_on_both() -> None:
    found = {
        release.DEFAULT: {"date": "2026-01-01", "tests": {"A.x": "", "A.y": "", "B.z": "why"}},
        release.EMBEDDED: {"date": "2026-01-02", "tests": {"A.x": "", "A.y": "why", "B.z": ""}},
    }

    assert results.table(found).splitlines()[-3:] == [
        "| A | 2 | 2 | 1 | 1 |",
        "| B | 1 | 0 | 1 | 0 |",
        "| **all** | **3** | **2** | **2** | **1** |",
    ]
