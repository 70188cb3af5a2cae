"""A file system that overwrites no file when it renames, without a JVM: HDFS returns false, S3A raises."""

from __future__ import annotations

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from rmqd.spark.session.hadoop_folder import HadoopFolder


class Files:
    """`rename` returns false for a missing source. If the target exists, HDFS returns false, and S3A raises."""

    def __init__(self, scheme: str) -> None:
        self.content: dict[str, str] = {}
        self.written_ms: dict[str, int] = {}
        """Modification times of files; 0 for all others."""
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
        return path.toString() in self.content or bool(self._below(path))

    def listStatus(self, path: JavaPath) -> list[Any]:
        here = len(PurePosixPath(path.toString()).parts)
        names = {PurePosixPath(one).parts[here] for one in self._below(path)}
        return [self._status(JavaPath(path, name)) for name in names]

    def _status(self, path: JavaPath) -> Any:
        written_ms = self.written_ms.get(path.toString(), 0)
        return SimpleNamespace(getPath=lambda: path, getModificationTime=lambda: written_ms)

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

    def _below(self, path: JavaPath) -> list[str]:
        return [one for one in self.content if one.startswith(f"{path}/")]


class JavaError:
    """The part of a Java exception that py4j passes to Python."""

    _target_id = "o1"
    _gateway_client = None

    def __init__(self, name: str) -> None:
        self._name = name

    def getClass(self) -> Any:
        return SimpleNamespace(getName=lambda: self._name)

    def toString(self) -> str:
        return self._name


class JavaPath:
    """The used part of Hadoop's Path."""

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


def folder_in(files: Files) -> HadoopFolder:
    """Return the folder /a of this file system."""
    path = type("BoundPath", (JavaPath,), {"files": files})
    hadoop = SimpleNamespace(fs=SimpleNamespace(Path=path))
    java = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
    context = SimpleNamespace(_jvm=java, _jsc=SimpleNamespace(hadoopConfiguration=lambda: None))
    spark: Any = SimpleNamespace(sparkContext=context)
    return HadoopFolder(spark, "/a")
