"""Parquet files in a bucket, as what the handler `parquet` writes to in the campaign `handlers`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final, Self

import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tests.servers.s3 import BUCKET, S3Server

TOPIC: Final = "handled"


class ParquetFiles:
    """Files in a bucket of an S3. What counts is what the manifest lists."""

    plugin = "parquet"
    is_once = False

    def __init__(self) -> None:
        self._server = S3Server()
        self._arrived: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def options(self) -> dict[str, Any]:
        columns = {"key": "keys", "body": "body"}
        s3 = self._server.options()
        return {"path": f"s3://{BUCKET}/{TOPIC}", "s3": s3, "columns": columns, "roll_after": "1s"}

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()

    def arrived(self) -> Counter[str]:
        """By what it has on the disk: it answers late while it is loaded, and not at all while it is away."""
        folder = f"{TOPIC}/"
        for name in self._server.kept(f"{folder}_manifest/"):
            if name not in self._arrived:
                entry = json.loads(self._server.kept_at(name).read_bytes())
                file = pq.ParquetFile(self._server.kept_at(f"{folder}{entry['file']}"))
                self._arrived[name] = file.read(["key"])["key"].to_pylist()
        return Counter(key for keys in self._arrived.values() for key in keys)
