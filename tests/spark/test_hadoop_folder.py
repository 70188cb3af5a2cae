"""Moves between folders, on a file system that renames over no file and says no more than that it did not."""

from __future__ import annotations

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from rmqd.errors import RmqdError
from tests.spark.needed import need

need("pyspark")

from rmqd.spark.hadoop_folder import HadoopFolder  # noqa: E402


class Files:
    """As HDFS and S3A do it: `rename` gives false for a source that is not there, and for a target that is."""

    def __init__(self) -> None:
        self.content: dict[str, str] = {}

    def getUri(self) -> Any:
        return SimpleNamespace(getScheme=lambda: "hdfs")

    def makeQualified(self, path: JavaPath) -> JavaPath:
        return path

    def exists(self, path: JavaPath) -> bool:
        return path.toString() in self.content

    def mkdirs(self, path: JavaPath) -> bool:
        return True

    def rename(self, source: JavaPath, target: JavaPath) -> bool:
        wrong = not self.exists(source) or self.exists(target)
        if not wrong:
            self.content[target.toString()] = self.content.pop(source.toString())
        return not wrong

    def delete(self, path: JavaPath, recursive: bool) -> bool:
        return self.content.pop(path.toString(), None) is not None


class JavaPath:
    """What is used of Hadoop's."""

    files: Files

    def __init__(self, *parts: object) -> None:
        self._path = PurePosixPath(*map(str, parts))

    def __str__(self) -> str:
        return str(self._path)

    toString = __str__

    def getFileSystem(self, configuration: object) -> Files:
        return self.files

    def getParent(self) -> JavaPath:
        return type(self)(self._path.parent)

    def getName(self) -> str:
        return self._path.name


@pytest.fixture
def files() -> Files:
    """Empty."""
    return Files()


@pytest.fixture
def folder(files: Files) -> HadoopFolder:
    """The folder /a of it."""
    path = type("BoundPath", (JavaPath,), {"files": files})
    hadoop = SimpleNamespace(fs=SimpleNamespace(Path=path))
    java = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
    context = SimpleNamespace(_jvm=java, _jsc=SimpleNamespace(hadoopConfiguration=lambda: None))
    spark: Any = SimpleNamespace(sparkContext=context)
    return HadoopFolder(spark, "/a")


def test_a_file_replaces_another(files: Files, folder: HadoopFolder) -> None:
    """And nothing else is left."""
    files.content = {"/a/new": "1", "/a/old": "0"}
    folder.move("new", folder, "old")
    assert files.content == {"/a/old": "1"}


def test_a_file_that_somebody_has_moved_already_stays_where_it_is(files: Files, folder: HadoopFolder) -> None:
    """A driver that was asleep meanwhile does not delete what another one has published."""
    files.content = {"/a/published": "1"}
    with pytest.raises(RmqdError, match="staged could not be moved from /a to published in /a"):
        folder.move("staged", folder, "published")
    assert files.content == {"/a/published": "1"}
