"""Parquet files in a bucket: the target of the handler `parquet` in the campaign `handlers`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final, Self

import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tests.servers.s3 import BUCKET, S3Server

TOPIC: Final = "handled"


class ParquetFiles:
    """Files in an S3 bucket. Only files listed in the manifest count."""

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
        """Read the server's disk, because the server responds late under load, and not at all while it is down."""
        folder = f"{TOPIC}/"
        for name in self._server.kept(f"{folder}_manifest/"):
            if name not in self._arrived:
                entry = json.loads(self._server.kept_at(name).read_bytes())
                file = pq.ParquetFile(self._server.kept_at(f"{folder}{entry['file']}"))
                self._arrived[name] = file.read(["key"])["key"].to_pylist()
        return Counter(key for keys in self._arrived.values() for key in keys)
