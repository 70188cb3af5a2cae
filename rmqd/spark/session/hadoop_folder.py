"""A folder on any file system that Spark can write to, local or remote, accessed through Hadoop's FileSystem."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors.exceptions.captured import CapturedException

from rmqd.errors import RmqdError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = TypeVar("T")

# a temporary file of this age is abandoned: a write takes seconds, but clocks may differ by hours
ABANDONED_FILE_AGE_MS: Final = 24 * 3600 * 1000
# A file that `_replace` renamed aside begins with a dot. It does not match, because it may be the only copy.
_TEMPORARY: Final = re.compile(r"[^.].*\.[0-9a-f]{32}\.tmp")
FILE_EXISTS_EXCEPTION: Final = "org.apache.hadoop.fs.FileAlreadyExistsException"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The size of a file, and the time of its last change in milliseconds since 1970."""

    size_bytes: int
    modified_ms: int


class HadoopFolder:
    """A folder, used on the driver. Methods take paths relative to this folder, with `/` as the separator.

    Methods raise RmqdError if the file system rejects an operation.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark = spark
        self._cleared: set[str] = set()  # folders in which abandoned temporary files were already deleted
        java = spark.sparkContext._jvm
        assert java is not None
        self._make_path: Any = java.org.apache.hadoop.fs.Path
        path = self._make_path(url)
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        with_checksums = _attempt("open", url, lambda: path.getFileSystem(configuration))
        # Hadoop's local file system would write a hidden checksum file for each file
        self._files: Any = with_checksums.getRaw() if _scheme(with_checksums) == "file" else with_checksums
        self._base: Any = self._files.makeQualified(path)

    @property
    def url(self) -> str:
        """The folder's absolute URL with its scheme, as Hadoop formats it."""
        return str(self._base.toString())

    @property
    def local_path(self) -> str:
        """The folder's path on this machine; empty if the folder is not on the local file system."""
        return str(self._base.toUri().getPath()) if _scheme(self._files) == "file" else ""

    @property
    def name(self) -> str:
        """The last part of the folder's path; empty for the root of a file system."""
        return str(self._base.getName())

    def sibling(self, name: str) -> HadoopFolder:
        """Return the folder `name` next to this folder, or below it if this folder is the root of a file system."""
        parent = self._base.getParent()
        return HadoopFolder(self._spark, self._make_path(parent or self._base, name).toString())

    def make(self, path: str = "") -> None:
        _attempt("make", path or self.url, lambda: self._files.mkdirs(self._at(path)))

    def exists(self, path: str) -> bool:
        return _attempt("look for", path, lambda: bool(self._files.exists(self._at(path))))

    def names(self, path: str = "") -> list[str]:
        """Return the names of files and folders in a folder, sorted; empty if the folder is missing."""
        if not self.exists(path):
            return []
        return sorted(str(one.getPath().getName()) for one in _attempt("list", path, lambda: self._list(path)))

    def files(self, path: str = "") -> list[str]:
        """Return the paths of all files below a folder, sorted; empty if the folder is missing."""
        return sorted(self.file_facts(path))

    def file_facts(self, path: str = "") -> dict[str, FileFacts]:
        """Return the size and time of all files below a folder, by path; empty if the folder is missing."""
        if not self.exists(path):
            return {}
        base = self._base.toUri().getPath().rstrip("/") + "/"

        def below() -> dict[str, FileFacts]:
            found, remaining = {}, self._files.listFiles(self._at(path), True)
            while remaining.hasNext():
                status = remaining.next()
                name = str(status.getPath().toUri().getPath()).removeprefix(base)
                found[name] = FileFacts(int(status.getLen()), int(status.getModificationTime()))
            return found

        return _attempt("list", path, below)

    def read(self, path: str) -> bytes:
        def content() -> bytes:
            with contextlib.closing(self._files.open(self._at(path))) as stream:
                return bytes(stream.readAllBytes())

        return _attempt("read", path, content)

    def put(self, path: str, content: bytes) -> None:
        """Write a file atomically, replacing an existing file."""
        self.move(self._write_beside(path, content), self, path)

    def put_new(self, path: str, content: bytes) -> bool:
        """Write a file atomically, unless `path` exists. Return whether the file was written.

        If several drivers write the same path, one succeeds, except on object stores that copy a file to rename it.
        """
        temporary = self._write_beside(path, content)
        source, destination = self._at(temporary), self._at(path)
        try:
            if self.local_path:  # a local rename would replace the file
                return _link(f"{self.local_path}/{temporary}", f"{self.local_path}/{path}")
            return _attempt("write", path, lambda: self._rename(source, destination))
        finally:
            self.delete(temporary)

    def move(self, path: str, target: HadoopFolder, target_path: str) -> None:
        """Move a file to a folder of the same file system, replacing an existing file.

        Raises RmqdError if the file is missing, for example because another driver has moved it.
        """
        source, destination = self._at(path), target._at(target_path)

        def rename() -> bool:
            self._files.mkdirs(destination.getParent())
            return self._rename(source, destination) or self._replace(source, destination)

        if not _attempt("move", path, rename):
            raise RmqdError(f"{path} could not be moved from {self.url} to {target_path} in {target.url}")

    def _write_beside(self, path: str, content: bytes) -> str:
        """Write a file under a temporary name next to `path`. Return the temporary path."""
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"

        def write() -> None:
            with contextlib.closing(self._files.create(self._at(temporary), True)) as stream:
                stream.write(bytearray(content))

        _attempt("write", temporary, write)
        folder = path.rpartition("/")[0]
        if folder not in self._cleared:
            self._cleared.add(folder)
            with contextlib.suppress(RmqdError):  # the next process that writes to the folder tries again
                self._clear(folder, temporary)
        return temporary

    def _clear(self, folder: str, temporary: str) -> None:
        """Delete old temporary files of writers that died. The time of the new file `temporary` counts as now."""
        modified_ms = {
            str(one.getPath().getName()): int(one.getModificationTime())
            for one in _attempt("list", folder, lambda: self._list(folder))
            if _TEMPORARY.fullmatch(str(one.getPath().getName()))
        }
        now_ms = modified_ms.get(temporary.rpartition("/")[2], 0)
        for name, written_ms in modified_ms.items():
            if now_ms - written_ms > ABANDONED_FILE_AGE_MS:
                self.delete(f"{folder}/{name}" if folder else name)

    def _rename(self, source: Any, destination: Any) -> bool:
        """Rename a file. Return False if the source is missing, or the destination exists on a remote file system."""
        try:
            return bool(self._files.rename(source, destination))
        except Py4JJavaError as error:
            # S3A raises, while HDFS returns false
            if error.java_exception.getClass().getName() == FILE_EXISTS_EXCEPTION:
                return False
            raise

    def _replace(self, source: Any, destination: Any) -> bool:
        """Replace an existing file, on a file system that cannot rename over it. Return whether it succeeded.

        A refused rename gives no reason. Possibly another driver has just moved the source to the destination. So the
        destination is not deleted, but renamed aside. If the rename fails again, the destination is renamed back.
        """
        if not self._files.exists(source) or not self._files.exists(destination):
            return False
        aside = self._make_path(destination.getParent(), f".{destination.getName()}.{uuid.uuid4().hex}.tmp")
        if not self._rename(destination, aside):
            return False
        if self._rename(source, destination):
            self._files.delete(aside, False)
            return True
        self._rename(aside, destination)
        return False

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content. A missing file or folder is not an error."""
        _attempt("delete", path, lambda: self._files.delete(self._at(path), True))

    def _list(self, path: str) -> Any:
        return self._files.listStatus(self._at(path))

    def _at(self, path: str) -> Any:
        return self._make_path(self._base, path) if path else self._base


def _link(source: str, destination: str) -> bool:
    """Create the hard link `destination` to a local file, or rename the file. Return False if `destination` exists."""
    try:
        os.link(source, destination)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if os.path.exists(destination):
            return False
        os.replace(source, destination)
    return True


def _scheme(file_system: Any) -> str:
    return str(file_system.getUri().getScheme())


def _attempt(what: str, path: str, work: Callable[[], T]) -> T:
    with java_errors(f"cannot {what} {path}"):
        return work()


@contextlib.contextmanager
def java_errors(what: str) -> Iterator[None]:
    """Convert errors of the JVM to RmqdErrors. Their text is `what` and the first line of the JVM's error."""
    try:
        yield
    except Py4JJavaError as error:
        raise RmqdError(f"{what}: {_first_line(error.java_exception.toString())}") from error
    except CapturedException as error:  # exceptions that PySpark converts
        raise RmqdError(f"{what}: {_first_line(error.getMessage())}") from error


def _first_line(text: object) -> str:
    return str(text).partition("\n")[0]
