"""A local HadoopFolder without a JVM, and a checkpoint in it as Spark writes it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Final

from rmqd.errors import RmqdError
from rmqd.spark.session.hadoop_folder import FileFacts, HadoopFolder
from tests.spark.micro_batches import Checkpoint

# as PySpark 4.3 writes them, with a shortened configuration
SESSION: Final = '{"batchWatermarkMs":0,"batchTimestampMs":1795291240706,"conf":{"spark.sql.shuffle.partitions":"200"}}'
COMMITTED: Final = 'v1\n{"nextBatchWatermarkMs":0}'


class LocalFolder(HadoopFolder):
    """A folder on this machine."""

    def __init__(self, base: Path) -> None:
        self._base = base

    @property
    def url(self) -> str:
        return str(self._base)

    def names(self, path: str = "") -> list[str]:
        folder = self._base / path
        return sorted(one.name for one in folder.iterdir()) if folder.exists() else []

    def read(self, path: str) -> bytes:
        return Path(self._base, path).read_bytes()

    def exists(self, path: str) -> bool:
        return Path(self._base, path).exists()

    def make(self, path: str = "") -> None:
        (self._base / path).mkdir(parents=True, exist_ok=True)

    def put_new(self, path: str, content: bytes) -> bool:
        if self.exists(path):
            return False
        self.put(path, content)
        return True

    def put(self, path: str, content: bytes) -> None:
        file = self._base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def files(self, path: str = "") -> list[str]:
        found = (one for one in (self._base / path).rglob("*") if one.is_file())
        return sorted(str(one.relative_to(self._base)) for one in found)

    def file_facts(self, path: str = "") -> dict[str, FileFacts]:
        found = {name: os.stat(self._base / name) for name in self.files(path)}
        return {name: FileFacts(one.st_size, one.st_mtime_ns // 1_000_000) for name, one in found.items()}

    def move(self, path: str, target: Any, target_path: str) -> None:
        if not self.exists(path):
            raise RmqdError(f"{path} could not be moved")
        target.make(str(Path(target_path).parent))
        os.replace(self._base / path, target._base / target_path)

    def delete(self, path: str) -> None:
        file = self._base / path
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink(missing_ok=True)


def save(checkpoint: Checkpoint, path: str) -> None:
    """Write a query's logs below `path`."""
    for folder in ("offsets", "commits"):
        (Path(path) / folder).mkdir(parents=True, exist_ok=True)
    for batch, offsets in enumerate(checkpoint.offsets):
        (Path(path) / "offsets" / str(batch)).write_text(f"v1\n{SESSION}\n{offsets}")
    for batch in range(checkpoint.commits):
        (Path(path) / "commits" / str(batch)).write_text(COMMITTED)
