"""Moves between folders, on file systems whose rename overwrites no file: some only return false, S3A raises."""

from __future__ import annotations

import pytest

from rmqd.errors import RmqdError
from tests.spark.needed import need

need("pyspark")

from rmqd.spark.session.hadoop_folder import HadoopFolder  # noqa: E402
from tests.nightly.spark.java_files import Files, folder_in  # noqa: E402


@pytest.fixture(params=["hdfs", "s3a"])
def files(request: pytest.FixtureRequest) -> Files:
    """An empty file system."""
    return Files(request.param)


@pytest.fixture
def folder(files: Files) -> HadoopFolder:
    """The folder /a of the file system."""
    return folder_in(files)


def test_a_file_replaces_another(files: Files, folder: HadoopFolder) -> None:
    """No other file is left."""
    files.content = {"/a/new": "1", "/a/old": "0"}
    folder.move("new", folder, "old")
    assert files.content == {"/a/old": "1"}


def test_a_file_that_another_driver_has_moved_stays_where_it_is(files: Files, folder: HadoopFolder) -> None:
    """A driver that slept meanwhile does not delete the published file."""
    files.content = {"/a/published": "1"}
    with pytest.raises(RmqdError, match="staged could not be moved from /a to published in /a"):
        folder.move("staged", folder, "published")
    assert files.content == {"/a/published": "1"}


def test_put_new_writes_only_a_missing_file(files: Files, folder: HadoopFolder) -> None:
    """If two drivers make the same decision, the first one counts."""
    assert folder.put_new("decision", b"first")
    assert not folder.put_new("decision", b"second")
    assert files.content == {"/a/decision": "first"}
    folder.put("decision", b"third")
    assert files.content == {"/a/decision": "third"}


@pytest.mark.parametrize("how", ["put", "put_new"])
def test_leftovers_of_a_crash_are_deleted_by_the_next_write(files: Files, folder: HadoopFolder, how: str) -> None:
    """Only files too old to be renamed are deleted. A file that was set aside may be the only copy, and stays."""
    old, young = (f"/a/notes/decision.{digit * 32}.tmp" for digit in "ab")
    aside, other = f"/a/notes/.decision.{'c' * 32}.tmp", "/a/notes/mine.tmp"
    day_ms = 24 * 3600 * 1000
    files.content = dict.fromkeys((old, young, aside, other), "left")
    files.written_ms = {old: -day_ms - 1, young: -day_ms, aside: -day_ms - 1, other: -day_ms - 1}
    getattr(folder, how)("notes/decision", b"first")
    assert set(files.content) == {young, aside, other, "/a/notes/decision"}
