"""What a query failed by, in one line, from the pages that Spark raises."""

from __future__ import annotations

from rmqd.spark.engine.running_query import MOST_CHARACTERS, query_error

PAGES = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {said}
Traceback (most recent call last):
  File "/lib/pyspark/worker.py", line 1, in main
    x
{raised}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
"""


def test_the_cause_is_what_a_person_needs() -> None:
    cases: list[tuple[str, str]] = [
        (PAGES.format(said="Job aborted", raised="rmqd.errors.DataLossError: data loss in x"), "data loss in x"),
        (PAGES.format(said="Job aborted", raised="KeyError: 'order'"), "KeyError: 'order'"),
        (
            PAGES.format(
                said="Job aborted",
                raised="rmqd.errors.DataLossError: the first\n\nTraceback (most recent call last):\n"
                "pyspark.errors.exceptions.base.PySparkRuntimeError: [X] wraps it",
            ),
            "the first",
        ),
        ("[PATH_NOT_FOUND] Path does not exist: /nowhere.\n\nand so on", "Spark: [PATH_NOT_FOUND] Path does not exist"),
        ("", "Spark ended with RuntimeError"),
    ]
    for said, expected in cases:
        error = query_error(RuntimeError(said))
        assert str(error).startswith(expected)
        assert "\n" not in str(error)
        assert error.said == said


def test_a_cause_of_many_pages_is_cut() -> None:
    assert len(str(query_error(RuntimeError("ValueError: " + "x" * 5000)))) == MOST_CHARACTERS
