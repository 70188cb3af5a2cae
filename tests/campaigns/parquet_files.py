"""Parquet files in a bucket, as what the handler `parquet` writes to in the campaign `handlers`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Self

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyarrow import fs

from tests.servers.s3 import BUCKET, S3Server


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
        return {"path": f"s3://{BUCKET}/handled", "s3": s3, "columns": columns, "roll_after": "1s", "timeout": "2s"}

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()

    def arrived(self) -> Counter[str]:
        files = self._server.files()
        manifest = fs.FileSelector(f"{BUCKET}/handled/_manifest", recursive=True, allow_not_found=True)
        for info in files.get_file_info(manifest):
            if info.extension == "json" and info.path not in self._arrived:
                entry = json.loads(files.open_input_stream(info.path).read())
                file = pq.read_table(f"{BUCKET}/handled/{entry['file']}", filesystem=files, partitioning=None)
                self._arrived[info.path] = file["key"].to_pylist()
        return Counter(key for keys in self._arrived.values() for key in keys)
