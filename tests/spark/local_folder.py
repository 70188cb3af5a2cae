"""A folder as HadoopFolder is one, without a JVM; and a checkpoint in it as Spark writes it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests.spark.micro_batches import Checkpoint

# as PySpark 4.3 writes them, the configuration cut short
SESSION: Final = '{"batchWatermarkMs":0,"batchTimestampMs":1795291240706,"conf":{"spark.sql.shuffle.partitions":"200"}}'
COMMITTED: Final = 'v1\n{"nextBatchWatermarkMs":0}'


class LocalFolder:
    """Below a path of this machine."""

    def __init__(self, base: Path) -> None:
        self._base = base

    @property
    def url(self) -> str:
        return str(self._base)

    def names(self, path: str = "") -> list[str]:
        folder = self._base / path
        return sorted(one.name for one in folder.iterdir()) if folder.exists() else []

    def read(self, path: str) -> bytes:
        return (self._base / path).read_bytes()

    def put(self, path: str, content: bytes) -> None:
        file = self._base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

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
