"""The cause of a failed query in one line, extracted from the long report that Spark raises."""

from __future__ import annotations

import json

from rmqd.spark.source.source_offsets import SourceOffsets
from rmqd.wire.message_queue import MessageQueue
from tests.spark.needed import need

need("pyspark")

from rmqd.spark.engine.running_query import MAX_CAUSE_CHARACTERS, query_error  # noqa: E402
from rmqd.spark.pipelines.pipeline_counts import BatchFailedError, MicroBatch  # noqa: E402

PAGES = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {said}
Traceback (most recent call last):
  File "/lib/pyspark/worker.py", line 1, in main
    x
{raised}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
"""


def test_the_cause_is_extracted_from_sparks_report() -> None:
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
        (
            "[STREAM_FAILED] terminated: [X] perform initialOffset: rmqd.errors.RmqdError: no topic\n\tat x",
            "no topic",
        ),
        (PAGES.format(said="Job aborted", raised="pyspark.errors.x.SparkRuntimeException: [Y] why"), "Spark: [Y] why"),
        ("[PATH_NOT_FOUND] Path does not exist: /nowhere.\n\nand so on", "Spark: [PATH_NOT_FOUND] Path does not exist"),
        ("", "Spark ended with RuntimeError"),
    ]
    for said, expected in cases:
        error = query_error(RuntimeError(said))
        assert str(error).startswith(expected)
        assert "\n" not in str(error)
        assert error.spark_report == said


def test_the_cause_names_the_messages_of_its_batch() -> None:
    """Errors of a task or of Java do not name their messages themselves."""
    queue = MessageQueue("orders", "broker-a", 0)
    plans = [f"v1\n{{}}\n{json.dumps(SourceOffsets({queue: end}).to_json())}".encode() for end in (100, 120)]
    named = BatchFailedError(MicroBatch("query", 7, plans[1]).describe_messages(plans[0]))
    chain = f"shop.flows.BadPriceError: no price\n\nThe above\n\n{type(named).__module__}.BatchFailedError: {named}"
    said = "no price; batch 7 has orders@broker-a:0, offsets 100 to 119"
    assert str(query_error(Exception(chain))) == f"shop.flows.BadPriceError: {said}"


def test_the_messages_of_a_batch_are_named_beside_other_sources() -> None:
    """Spark writes one line for each source, in the order of the query's plan: `-` for a source without offsets."""

    def log(*lines: str) -> bytes:
        return "\n".join(["v1", "{}", *lines]).encode()

    def ends(topic: str, end: int) -> str:
        return json.dumps(SourceOffsets({MessageQueue(topic, "a", 0): end}).to_json())

    former = log('{"logOffset": 3}', ends("refunds", 5), ends("orders", 7), "-")
    batch = MicroBatch("query", 7, log('{"logOffset": 4}', ends("refunds", 6), ends("orders", 9), "-"))
    assert batch.describe_messages(former) == "batch 7 has refunds@a:0, offsets 5 to 5; orders@a:0, offsets 7 to 8"
    assert MicroBatch("query", 8, former).describe_messages(former) == "batch 8 has no new messages"


def test_a_very_long_cause_is_cut() -> None:
    assert len(str(query_error(RuntimeError("ValueError: " + "x" * 5000)))) == MAX_CAUSE_CHARACTERS
