"""The Parquet sink, read by pyarrow: each row exists once, whenever the driver was killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqd.errors import ConfigError, RmqdError
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.pipelines.parquet_sink import ParquetSink, default_staging_folder  # noqa: E402
from rmqd.spark.pipelines.pipeline_counts import MicroBatch  # noqa: E402
from rmqd.spark.session.hadoop_folder import HadoopFolder  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = "3f2f6c3c-93f1-4b0a-8a51-0a6a3f4f6a51"
OTHER_QUERY = "4f2f6c3c-93f1-4b0a-8a51-0a6a3f4f6a51"
EACH = 6


class KilledError(BaseException):
    """Simulates SIGKILL: nothing catches it."""


class Life:
    """The number of file changes until a driver is killed."""

    def __init__(self) -> None:
        self.left = -1

    def poll_unchanged(self) -> None:
        if self.left == 0:
            self.end()
        self.left -= 1

    def end(self) -> None:
        raise KilledError


class Sleep(Life):
    """The number of file changes until a driver sleeps, as a virtual machine does. Meanwhile others do their work."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def end(self) -> None:
        self._meanwhile()


class MortalFolder(HadoopFolder):
    """Changes files until its driver is killed, before a change or right after it."""

    def __init__(self, spark: SparkSession, url: str, life: Life) -> None:
        super().__init__(spark, url)
        self._life = life

    def put(self, path: str, content: bytes) -> None:
        self._life.poll_unchanged()
        super().put(path, content)  # contains a move
        self._life.poll_unchanged()

    def put_new(self, path: str, content: bytes) -> bool:
        self._life.poll_unchanged()
        written = super().put_new(path, content)  # contains a delete
        self._life.poll_unchanged()
        return written

    def move(self, path: str, target: HadoopFolder, target_path: str) -> None:
        self._life.poll_unchanged()
        super().move(path, target, target_path)
        self._life.poll_unchanged()

    def delete(self, path: str) -> None:
        self._life.poll_unchanged()
        super().delete(path)
        self._life.poll_unchanged()


def read(folder: Path) -> list[int]:
    """The ids that a reader of all files finds, without knowledge of rmqd."""
    import pyarrow.dataset  # type: ignore[import-untyped]  # imports pandas, which would delay test collection

    files = [path for path in folder.rglob("*") if path.is_file()]
    assert all(path.suffix == ".parquet" for path in files), files
    if not files:
        return []
    table = pyarrow.dataset.dataset(
        folder, format="parquet", partitioning="hive", exclude_invalid_files=False
    ).to_table()
    return sorted(table["id"].to_pylist())


def rows(spark: SparkSession, batch: int, tasks: int = 2) -> DataFrame:
    """A batch's rows, of two topics. Each of two tasks writes the file of one topic; a single task writes both."""
    frame = spark.range(batch * EACH, (batch + 1) * EACH, 1, tasks)
    return frame.selectExpr(
        "id", f"concat('topic%', int(id % {EACH} >= {EACH // 2})) AS topic", "timestamp_seconds(id) AS at"
    )


def sink(spark: SparkSession, folder: Path, life: Life | None = None) -> ParquetSink:
    where = HadoopFolder(spark, str(folder))
    beside = MortalFolder(spark, default_staging_folder(where).url, life or Life())
    made = ParquetSink(MortalFolder(spark, str(folder), life or Life()), beside, "archive", ("topic",))
    made.prepare(rows(spark, 0).schema)
    return made


@pytest.mark.timeout(300)  # with the start of the session, on a machine that may be busy
def test_a_driver_killed_at_any_step_leaves_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    """Each driver dies one step later than the previous one. The next driver repeats the batch with other tasks."""
    folder, number, lives = tmp_path / "archive", 0, True
    while lives:
        life = Life()
        dying = sink(spark, folder, life)
        life.left = number
        before = list(range(number * EACH))
        batch = MicroBatch(QUERY, number, f"plan {number}".encode())
        try:
            dying.write(rows(spark, number), batch)
            lives = False
        except KilledError:
            seen = read(folder)
            assert len(set(seen)) == len(seen)
            assert set(seen) >= set(before)
        written = sink(spark, folder).write(rows(spark, number, tasks=1), batch)
        assert written == EACH
        number += 1
        assert read(folder) == list(range(number * EACH))
    assert number >= 8  # there were enough steps
    assert {path.name for path in folder.iterdir()} == {"topic=topic%250", "topic=topic%251"}
    left = [path.name for path in (tmp_path / ".archive.rmqd" / "archive" / QUERY).iterdir()]
    assert len(left) == 1  # the last batch's manifest


def test_a_checkpoint_that_was_set_back_replaces_files(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that is planned again replaces the query's files since then. Files of other queries stay."""
    folder = tmp_path / "archive"
    sink(spark, folder).write(rows(spark, 50), MicroBatch(OTHER_QUERY, 2, b"other"))
    for number in range(3):
        sink(spark, folder).write(rows(spark, number), MicroBatch(QUERY, number, b"first"))
    life = Life()
    dying = sink(spark, folder, life)
    longer = rows(spark, 1).union(rows(spark, 2)).union(rows(spark, 3))
    other = list(range(50 * EACH, 51 * EACH))
    life.left = 5  # between the new files' moves
    with pytest.raises(KilledError):
        dying.write(longer, MicroBatch(QUERY, 1, b"second"))
    assert len(set(read(folder))) == len(read(folder))
    sink(spark, folder).write(longer, MicroBatch(QUERY, 1, b"second"))
    assert read(folder) == [*range(4 * EACH), *other]
    sink(spark, folder).write(rows(spark, 4), MicroBatch(QUERY, 2, b"second"))
    assert read(folder) == [*range(5 * EACH), *other]


def test_files_that_a_killed_query_has_written_are_moved_by_the_next_one(spark: SparkSession, tmp_path: Path) -> None:
    """Its group may continue with another checkpoint, whose query never repeats the batch."""
    folder, life = tmp_path / "archive", Life()
    dying = sink(spark, folder, life)
    life.left = 5  # its manifest is there, and a file was moved
    with pytest.raises(KilledError):
        dying.write(rows(spark, 0), MicroBatch(QUERY, 0, b"plan"))
    assert 0 < len(read(folder)) < EACH
    sink(spark, folder).write(rows(spark, 1), MicroBatch(OTHER_QUERY, 0, b"plan"))
    assert read(folder) == list(range(2 * EACH))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_driver_that_wakes_up_at_any_step_harms_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Meanwhile another driver has done its batch and the next one, and has started to move the files of a third one.

    Both repeat batches of another plan, so that files of former attempts must be deleted.
    """
    former = tmp_path / "former"
    for number in range(2):
        sink(spark, former / "archive").write(rows(spark, number), MicroBatch(QUERY, number, b"first"))
    step, refused, has_slept = 0, 0, True
    while has_slept:
        folder = tmp_path / f"asleep-{step}" / "archive"
        shutil.copytree(former, folder.parent)

        def meanwhile(folder: Path = folder) -> None:
            for number in range(2):
                sink(spark, folder).write(rows(spark, number + 10, tasks=1), MicroBatch(QUERY, number, b"second"))
            life = Life()
            third = sink(spark, folder, life)
            life.left = 5  # a file was moved
            with pytest.raises(KilledError):
                third.write(rows(spark, 12), MicroBatch(QUERY, 2, b"second"))

        sleep = Sleep(meanwhile)
        sleeper = sink(spark, folder, sleep)
        sleep.left = step
        try:
            sleeper.write(rows(spark, 10), MicroBatch(QUERY, 0, b"second"))
        except RmqdError:
            refused += 1
        if has_slept := sleep.left < 0:
            sink(spark, folder).write(rows(spark, 12), MicroBatch(QUERY, 2, b"second"))
            assert read(folder) == list(range(10 * EACH, 13 * EACH)), f"asleep before change {step}"
        step += 2  # there is a step before and after each change
    assert step >= 16  # there were enough steps
    assert refused >= 3  # before its manifest, and while its files were moved


def test_a_batch_without_rows_leaves_no_file(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would write a file with columns and without rows."""
    assert sink(spark, tmp_path / "archive").write(rows(spark, 0).where("id < 0"), MicroBatch(QUERY, 0)) == 0
    assert read(tmp_path / "archive") == []


def test_columns_can_be_added_and_removed_but_keep_their_types(spark: SparkSession, tmp_path: Path) -> None:
    """Columns that no reader could read together are refused before anything is written."""
    folder = HadoopFolder(spark, str(tmp_path / "archive"))

    def prepare(*columns: str, partition_by: tuple[str, ...] = ("topic",)) -> ParquetSink:
        made = ParquetSink(folder, default_staging_folder(folder), "archive", partition_by)
        made.prepare(spark.range(1).selectExpr(*columns).schema)
        return made

    prepare("1 AS id", "'a' AS topic")
    prepare("1 AS id", "'a' AS topic", "'x' AS added")
    prepare("'a' AS topic", "'x' AS added")
    with pytest.raises(ConfigError, match="column id: is now string, but int in the folder") as raised:
        prepare("'1' AS id", "'a' AS topic", "1 AS added")
    assert "column added: is now int, but string in the folder" in str(raised.value)
    with pytest.raises(ConfigError, match="the folder is partitioned by topic, and the group by nothing"):
        prepare("1 AS id", "'a' AS topic", partition_by=())
    with pytest.raises(ConfigError, match="unknown column day; expected one of id, topic"):
        prepare("1 AS id", "'a' AS topic", partition_by=("day",))
    with pytest.raises(ConfigError, match="none is left for the files"):
        prepare("'a' AS topic")


def test_a_folder_with_a_url_and_unusable_folders(spark: SparkSession, tmp_path: Path) -> None:
    """A Hadoop URL with a space. The root of a file system has no parent for the staging folder."""
    folder = HadoopFolder(spark, f"file://{tmp_path}/the archive")
    made = ParquetSink(folder, default_staging_folder(folder), "archive")
    made.prepare(rows(spark, 0).schema)
    assert made.write(rows(spark, 0), MicroBatch(QUERY, 0)) == EACH
    assert read(tmp_path / "the archive") == list(range(EACH))
    with pytest.raises(RmqdError, match="file:/ is the top of a file system"):
        default_staging_folder(HadoopFolder(spark, "file:///"))
    with pytest.raises(RmqdError, match=r"cannot open nowhere://there: .*No FileSystem for scheme"):
        HadoopFolder(spark, "nowhere://there")
