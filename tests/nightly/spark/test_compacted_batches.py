"""The record of compacted batches, written by several processes at once; without a JVM."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqd.errors import RmqdError
from tests.spark.needed import need

need("pyspark")

from rmqd.spark.pipelines.compaction import CompactedBatches  # noqa: E402
from tests.nightly.spark.java_files import Files, JavaPath, folder_in  # noqa: E402
from tests.nightly.spark.test_compaction_schedules import Actor  # noqa: E402
from tests.nightly.spark.test_compaction_steps import LATER, OTHER_QUERY, QUERY  # noqa: E402
from tests.spark.local_folder import LocalFolder  # noqa: E402

SCHEDULES = 60
DAY_SECONDS = 24 * 3600


class Shared(LocalFolder):
    """A folder that others change between any two accesses."""

    def __init__(self, base: Path, actor: Actor) -> None:
        super().__init__(base)
        self._actor = actor

    def names(self, path: str = "") -> list[str]:
        self._actor.pause()
        return super().names(path)

    def put(self, path: str, content: bytes) -> None:
        self._actor.pause()
        super().put(path, content)

    def put_new(self, path: str, content: bytes) -> bool:
        self._actor.pause()
        return super().put_new(path, content)  # checks, and writes

    def delete(self, path: str) -> None:
        self._actor.pause()
        super().delete(path)


class Changing(Files):
    """Calls a function before and after each change of a file, but not from within that function."""

    def __init__(self, scheme: str) -> None:
        super().__init__(scheme)
        self.on_change: Callable[[], None] = lambda: None

    def rename(self, source: JavaPath, target: JavaPath) -> bool:
        self._tell()
        renamed = super().rename(source, target)
        self._tell()
        return renamed

    def delete(self, path: JavaPath, recursive: bool) -> bool:
        self._tell()
        deleted = super().delete(path, recursive)
        self._tell()
        return deleted

    def _tell(self) -> None:
        told, self.on_change = self.on_change, lambda: None
        told()
        self.on_change = told


def batches(folder: LocalFolder) -> CompactedBatches:
    return CompactedBatches(folder, "batches")


def shared(base: Path, work: Callable[[CompactedBatches], None]) -> Callable[[Actor], None]:
    """Return the work of an actor on the record."""
    return lambda actor: work(batches(Shared(base, actor)))


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    """The recorded batch never decreases, whatever one writer adds or deletes between two steps of another one."""
    for seed in range(SCHEDULES):
        draw, base = random.Random(seed), tmp_path / f"{seed}"
        folder = LocalFolder(base)
        actors = [
            Actor(shared(base, lambda note: note.add({QUERY: 5, OTHER_QUERY: 9}))),
            Actor(shared(base, lambda note: note.add({QUERY: 7, OTHER_QUERY: 3}))),
            Actor(shared(base, lambda note: note.delete_outdated(LATER))),
        ]
        before = [-1, -1]
        while going := [actor for actor in actors if not actor.is_done]:
            draw.choice(going).step()
            now = [batches(folder).last_batch(query) for query in (QUERY, OTHER_QUERY)]
            assert all(one >= former for one, former in zip(now, before, strict=True)), seed
            before = now
        assert not [actor.error for actor in actors if actor.error], seed
        assert before == [7, 9], seed


@pytest.mark.parametrize("scheme", ["hdfs", "s3a"])
def test_a_batch_that_two_writers_record_is_always_visible(scheme: str) -> None:
    """Some stores cannot replace a file in one step. The second writer checks before the first one writes."""
    files = Changing(scheme)
    folder = folder_in(files)
    note = CompactedBatches(folder, "batches")
    seen: list[int] = []

    def first() -> None:
        if not seen:
            CompactedBatches(folder, "batches").add({QUERY: 7})
        seen.append(note.last_batch(QUERY))

    files.on_change = first
    note.add({QUERY: 7})
    assert len(seen) >= 3
    assert set(seen) == {7}
    assert list(files.content) == [f"/a/batches/{QUERY}-000000007"]


def test_the_highest_batch_counts(tmp_path: Path) -> None:
    """A batch that is not higher creates no file. A file is deleted when it and a higher one are a day old."""
    note = batches(LocalFolder(tmp_path))
    assert note.last_batch(QUERY) == -1
    for batch in (3, 12, 5, 12, 1_000_000_000):
        note.add({QUERY: batch, OTHER_QUERY: 0})
    assert (note.last_batch(QUERY), note.last_batch(OTHER_QUERY)) == (1_000_000_000, 0)
    files = sorted((tmp_path / "batches").iterdir())
    assert [path.name[37:] for path in files] == ["000000003", "000000012", "1000000000", "000000000"]
    for path in files[:2]:
        os.utime(path, (DAY_SECONDS, DAY_SECONDS))
    note.delete_outdated((2 * DAY_SECONDS + 1) * 1000)
    assert sorted((tmp_path / "batches").iterdir()) == files[1:]
    assert note.last_batch(QUERY) == 1_000_000_000


def test_a_record_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """Nothing may be moved then."""

    class Refusing(LocalFolder):
        def put_new(self, path: str, content: bytes) -> bool:
            return False

    with pytest.raises(RmqdError, match=rf"{QUERY}-000000003, which records compacted batches, could not be written"):
        batches(Refusing(tmp_path)).add({QUERY: 3})
