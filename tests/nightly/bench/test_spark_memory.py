"""The in-memory messages of the `engine: spark` benchmark: both ways through Spark get all of them."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from pyspark.sql.datasource import InputPartition  # noqa: E402

from bench import contenders, spark_memory  # noqa: E402


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_memory, "HELD", 4096)
    spark_memory.answers.cache_clear()
    spark_memory.rows.cache_clear()


def test_the_rows_hold_all_messages_in_each_round() -> None:
    batches = list(spark_memory.RowsReader(2).read(InputPartition(3)))
    offsets = list(itertools.chain.from_iterable(batch.column("queue_offset").to_pylist() for batch in batches))
    assert offsets == 2 * list(range(4096))
    assert {len(body) for batch in batches for body in batch.column("body").to_pylist()} == {256}


@pytest.mark.process
def test_the_engine_handles_all_messages(tmp_path: Path) -> None:
    """In a separate process, as with Spark, because it handles signals and takes over all pulls of its process.
    The name server returns the id of its cluster.
    """
    program = (
        "import sys\n"
        "from pyspark.sql.datasource import InputPartition\n"
        "from bench import spark_memory\n"
        "spark_memory.HELD = 4096\n"
        "order = spark_memory.order(sys.argv[1], 32)\n"
        "(row,) = spark_memory.EngineReader(2, order).read(InputPartition(3))\n"
        "print(row.column('messages').to_pylist())"
    )
    with EmbeddedBroker(tmp_path / "broker") as broker:
        command = [sys.executable, "-c", program, broker.nameserver]
        done = subprocess.run(command, cwd=contenders.ROOT, text=True, stdout=subprocess.PIPE, check=True)
    assert done.stdout.split() == [f"[{2 * 4096}]"]


def test_the_number_of_messages_must_be_whole_rounds() -> None:
    """Otherwise the rate would count other messages than were handled."""
    assert spark_memory.rounds(3 * 8 * 4096) == 3
    with pytest.raises(ValueError, match="expected a multiple of"):
        spark_memory.rounds(8 * 4096 + 1)
