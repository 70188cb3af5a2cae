"""Moves between folders, on file systems that rename over no file: some say only that they did not, S3A raises."""

from __future__ import annotations

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from rmqd.errors import RmqdError
from tests.spark.needed import need

need("pyspark")

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: E402

from rmqd.spark.hadoop_folder import HadoopFolder  # noqa: E402


class Files:
    """`rename` gives false for a source that is not there. Where a target is, HDFS gives false, and S3A raises."""

    def __init__(self, scheme: str) -> None:
        self.content: dict[str, str] = {}
        self._scheme = scheme

    def getUri(self) -> Any:
        return SimpleNamespace(getScheme=lambda: self._scheme)

    def create(self, path: JavaPath, overwrite: bool) -> Any:
        def write(content: bytearray) -> None:
            self.content[path.toString()] = content.decode()

        return SimpleNamespace(write=write, close=lambda: None)

    def makeQualified(self, path: JavaPath) -> JavaPath:
        return path

    def exists(self, path: JavaPath) -> bool:
        return path.toString() in self.content

    def mkdirs(self, path: JavaPath) -> bool:
        return True

    def rename(self, source: JavaPath, target: JavaPath) -> bool:
        if not self.exists(source):
            return False
        if self.exists(target):
            if self._scheme == "s3a":
                raise Py4JJavaError("", JavaError("org.apache.hadoop.fs.FileAlreadyExistsException"))
            return False
        self.content[target.toString()] = self.content.pop(source.toString())
        return True

    def delete(self, path: JavaPath, recursive: bool) -> bool:
        return self.content.pop(path.toString(), None) is not None


class JavaError:
    """What py4j hands over of an exception."""

    _target_id = "o1"
    _gateway_client = None

    def __init__(self, name: str) -> None:
        self._name = name

    def getClass(self) -> Any:
        return SimpleNamespace(getName=lambda: self._name)

    def toString(self) -> str:
        return self._name


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


@pytest.fixture(params=["hdfs", "s3a"])
def files(request: pytest.FixtureRequest) -> Files:
    """Empty."""
    return Files(request.param)


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


def test_a_file_is_written_anew_or_not_at_all(files: Files, folder: HadoopFolder) -> None:
    """Of two drivers that decide the same, the first one does."""
    assert folder.put_new("decision", b"first")
    assert not folder.put_new("decision", b"second")
    assert files.content == {"/a/decision": "first"}
    folder.put("decision", b"third")
    assert files.content == {"/a/decision": "third"}
