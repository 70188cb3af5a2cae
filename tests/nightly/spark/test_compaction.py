"""Compactions of an archive, read by pyarrow: no row is duplicated or lost, whenever a process is killed or sleeps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqd.errors import ConfigError, RmqdError
from rmqd.handler_api.destinations.archive_manifest import CompactionPlan
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.pipelines.compaction import CompactionChunk, Compactions, chunks_to_compact  # noqa: E402
from rmqd.spark.pipelines.parquet_sink import (  # noqa: E402
    compact_archive,
    default_staging_folder,
    file_merger,
    sink_to_compact,
)
from rmqd.spark.pipelines.pipeline_counts import MicroBatch  # noqa: E402
from rmqd.spark.session.hadoop_folder import HadoopFolder  # noqa: E402
from tests.nightly.spark.test_parquet_sink import EACH, QUERY, KilledError, Life, MortalFolder, Sleep, read, rows, sink  # noqa: E402
from tests.spark.group_queries import NO_KEYS, archive_order, order_of  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 3
ALL = list(range(BATCHES * EACH))
LARGE = 1 << 30


def filled(spark: SparkSession, folder: Path) -> Path:
    """An archive of some batches, each with a file in each of two partitions."""
    for number in range(BATCHES):
        sink(spark, folder).write(rows(spark, number, tasks=1), MicroBatch(QUERY, number, b"plan %d" % number))
    assert len(list(folder.rglob("*.parquet"))) == 2 * BATCHES
    return folder


def compactions(spark: SparkSession, folder: Path, life: Life | None = None) -> Compactions:
    where = HadoopFolder(spark, str(folder))
    beside = MortalFolder(spark, default_staging_folder(where).url, life or Life())
    return Compactions(MortalFolder(spark, str(folder), life or Life()), beside)


def chunks(spark: SparkSession, folder: Path) -> list[CompactionChunk]:
    return chunks_to_compact(HadoopFolder(spark, str(folder)).file_facts(), before_ms=2**60, wanted_bytes=LARGE)


def compact(
    spark: SparkSession, folder: Path, by: Compactions, chunk: CompactionChunk, options: Mapping[str, str] = NO_KEYS
) -> CompactionPlan | None:
    where = HadoopFolder(spark, str(folder))
    return by.compact(chunk, file_merger(spark, where.url, default_staging_folder(where).url, chunk, options))


def planned(spark: SparkSession, folder: Path) -> None:
    """Plan the compaction of a partition, but kill its driver before it renames a file in the folder."""

    class Fatal(MortalFolder):
        def move(self, path: str, target: HadoopFolder, target_path: str) -> None:
            raise KilledError

    here = HadoopFolder(spark, str(folder))
    dying = Compactions(Fatal(spark, str(folder), Life()), HadoopFolder(spark, default_staging_folder(here).url))
    with pytest.raises(KilledError):
        compact(spark, folder, dying, chunks(spark, folder)[0])
    assert read(folder) == ALL


def copied(template: Path, to: Path) -> Path:
    """Copy a folder with its staging folder."""
    shutil.copytree(template.parent, to)
    return to / template.name


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder.parent / f".{folder.name}.rmqd" / ".compactions").iterdir())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_compaction_killed_at_any_step_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """No row is ever duplicated. The next process finishes the compaction, and the files become one."""
    template = filled(spark, tmp_path / "template" / "archive")
    planned(spark, template)
    step, dies, missing = 0, True, 0
    while dies:
        folder = copied(template, tmp_path / f"step{step}")
        life = Life()
        dying = compactions(spark, folder, life)
        life.left = step
        try:
            dying.finish_all()
            dies = False
        except KilledError:
            seen = read(folder)
            assert len(set(seen)) == len(seen), f"duplicates after change {step}"
            missing += seen != ALL
        compactions(spark, folder).finish_all()
        assert read(folder) == ALL, f"after change {step}"
        assert len(list(folder.rglob("*.parquet"))) == 1 + BATCHES
        assert left(folder) == ["batches"]
        step += 1
    assert step > 2 * BATCHES  # there were enough steps
    assert 0 < missing <= 2 * BATCHES  # only while files are renamed


@pytest.mark.timeout(400)
def test_a_compaction_killed_before_its_plan_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The next compaction deletes its files, and does all its work."""
    folder = filled(spark, tmp_path / "archive")
    for step in (0, 3):
        life = Life()
        dying = compactions(spark, folder, life)
        life.left = step
        with pytest.raises(KilledError):
            compact(spark, folder, dying, chunks(spark, folder)[0])
        assert read(folder) == ALL
    later = compactions(spark, folder)
    later.finish_all()
    later.delete_unplanned_files(2**60)
    assert set(left(folder)) <= {"batches"}
    for chunk in chunks(spark, folder):
        plan = compact(spark, folder, later, chunk, {"compression": "gzip"})
        assert plan is not None
        assert plan.rows == len(ALL) // 2
    assert read(folder) == ALL
    assert [path.parent.name for path in sorted(folder.rglob("*.parquet"))] == ["topic=topic%250", "topic=topic%251"]
    assert chunks(spark, folder) == []
    assert left(folder) == ["batches"]


@pytest.mark.timeout(400)
def test_an_archive_is_written_during_a_compaction(spark: SparkSession, tmp_path: Path) -> None:
    """New batches in the compacted partition are complete. Their writer also finishes the planned compaction."""
    folder = filled(spark, tmp_path / "archive")
    planned(spark, folder)
    seen: list[list[int]] = []

    def meanwhile() -> None:
        archive = sink(spark, folder)
        archive.write(rows(spark, BATCHES, tasks=1), MicroBatch(QUERY, BATCHES, b"plan"))
        seen.append(read(folder))

    sleep = Sleep(meanwhile)
    sleeper = compactions(spark, folder, sleep)
    sleep.left = 3  # one of three files was taken
    sleeper.finish_all()
    whole = list(range((BATCHES + 1) * EACH))
    assert seen == [whole]
    assert read(folder) == whole
    with pytest.raises(RmqdError, match=r"batch 1 of archive has different .* compacted together with other rows"):
        sink(spark, folder).write(rows(spark, 1), MicroBatch(QUERY, 1, b"another plan"))
    assert read(folder) == whole


def test_small_and_old_files_of_a_groups_sink_are_compacted(spark: SparkSession, tmp_path: Path) -> None:
    """The command does the same. Columns that only some files have are null in the rows of the others."""
    folder = filled(spark, tmp_path / "archive")
    more = rows(spark, BATCHES, tasks=1).selectExpr("*", "'x' AS added")
    made = sink(spark, folder)
    made.prepare(more.schema)
    made.write(more, MicroBatch(QUERY, BATCHES, b"plan"))
    order = archive_order("127.0.0.1:1", tmp_path)  # its sink is this folder
    told: list[CompactionChunk] = []

    def run(**options: Any) -> int:
        return compact_archive(
            spark, order, **{"older_seconds": 60.0, "wanted_bytes": LARGE, "on_chunk": told.append, **options}
        )

    assert run() == 0
    for path in folder.rglob("*.parquet"):
        os.utime(path, (0, 0))
    assert run(dry_run=True) == 0
    assert [len(chunk.names) for chunk in told] == [BATCHES + 1] * 2
    assert len(list(folder.rglob("*.parquet"))) == 2 * (BATCHES + 1)
    assert run() == 2
    assert len(list(folder.rglob("*.parquet"))) == 2
    assert read(folder) == list(range((BATCHES + 1) * EACH))
    table = spark.read.parquet(str(folder))
    assert table.where("added = 'x'").count() == EACH
    assert table.where("added IS NULL").count() == BATCHES * EACH
    assert dict(table.dtypes)["at"] == "timestamp"
    assert run(older_seconds=0.0) == 0  # each partition has one large file


async def test_a_handlers_archive_is_compacted(spark: SparkSession, tmp_path: Path) -> None:
    """Each entry becomes part of a new one. The handler skips archived messages, and continues after them."""
    from tests.handlers.test_parquet import batch_of, entries, listed, started

    folder = tmp_path / "archive"
    async with started(folder, compression="gzip") as handler:
        for offsets in (range(3), range(3, 6), (7, 9), (999_999, 1_000_000)):
            await handler.handle(batch_of(*offsets))
    every = sorted(listed(folder))
    handler_of = {"engine": "local", "handler": {"plugin": "parquet", "options": {"path": str(folder)}}}
    order = order_of("127.0.0.1:1", **handler_of, spark=None)
    for older_seconds, made in ((60.0, 0), (0.0, 1), (0.0, 0)):
        assert compact_archive(spark, order, older_seconds=older_seconds, wanted_bytes=LARGE) == made
    assert sorted(listed(folder)) == every
    assert sorted(len(one["offsets"]) for one in entries(folder)) == [1, 5]
    assert len(list(folder.rglob("*.parquet"))) == 2
    assert left(folder) == ["batches"] or left(folder) == []
    async with started(folder) as handler:
        await handler.handle(batch_of(*range(11)))
        await handler.handle(batch_of(999_999, 1_000_000, 1_000_001))
    assert sorted(listed(folder)) == sorted([*every, 6, 8, 10, 1_000_001])


def test_a_group_without_files_is_refused() -> None:
    order = order_of("127.0.0.1:1", pipeline={"plugin": "x:y"}, sink={"format": "rocketmq", "topic": "out"})
    with pytest.raises(ConfigError, match="group archive has a sink of format rocketmq, and no files to compact"):
        sink_to_compact(order)


def command(folder: Path, sink_format: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    sink = (
        f"{{format: {sink_format}, path: {folder}}}" if sink_format == "parquet" else "{format: rocketmq, topic: out}"
    )
    config = folder.parent / "rmqd.yaml"
    config.write_text(f"""
nameserver: 127.0.0.1:1
groups:
  archive:
    engine: spark
    subscriptions: {{orders: "*"}}
    spark: {{master: "local[1,4]"}}
    pipeline: {{plugin: archive}}
    sink: {sink}
""")
    return subprocess.run(
        [sys.executable, "-m", "rmqd", "spark", "compact", *arguments, "--config", str(config)],
        timeout=240, check=False, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.process
def test_the_command_refuses_a_group_without_files(tmp_path: Path) -> None:
    ended = command(tmp_path / "archive", "rocketmq", "archive")
    assert ended.returncode == 78
    assert (
        "group archive has a sink of format rocketmq, and no files to compact; expected sink.format: parquet"
        in ended.stderr
    )
    assert command(tmp_path / "archive", "parquet", "--size", "large").returncode == 2


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(400)  # one more JVM, on a machine that may be busy
def test_the_command_compacts(spark: SparkSession, tmp_path: Path) -> None:
    """It reports for each partition how many files were merged, and with --dry-run how many it would merge."""
    folder = filled(spark, tmp_path / "archive")
    plan = json.loads(command(folder, "parquet", "archive", "--older-than", "0s", "--dry-run", "-o", "json").stdout)
    assert [(one["partition"], one["files"]) for one in plan] == [(f"topic=topic%25{number}", 3) for number in range(2)]
    assert all(one["size_bytes"] > 0 for one in plan)
    ended = command(folder, "parquet", "archive", "--older-than", "0s")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        *(f"topic=topic%25{number}: 3 files of 0.0 MiB became one" for number in range(2)),
        "2 files written",
    ]
    assert read(folder) == ALL
    assert len(list(folder.rglob("*.parquet"))) == 2
