"""`jsonl`: appends messages to a file as JSON lines, synced to disk before the batch is acknowledged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rmqd import Batch

from .append_file import AppendFile
from .away import mark_waiting
from .record import to_json_lines
from .units import SizeBytes


class JsonLines:
    """Appends each batch to a file that rotates by size. A batch is written completely and fsynced, or it waits."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid", validate_default=True)

        path: Path = Field(description="file to append to; relative paths start at the daemon's working directory")
        max_size: Annotated[SizeBytes, Field(gt=0)] = Field(
            "100MiB",  # type: ignore[assignment]
            description="the file is renamed to PATH.<UTC time> before it would grow beyond this",
        )
        keep: Annotated[int, Field(ge=0)] | None = Field(
            None,
            description="how many renamed files to keep; default: all",
        )

    def __init__(self, options: Options) -> None:
        self._file = AppendFile(options.path, max_size_bytes=options.max_size, keep=options.keep)

    def start(self) -> None:
        """Open the file now: a missing folder or permission fails the start instead of the first message."""
        self._file.open()

    def handle(self, batch: Batch) -> None:
        try:
            self._file.append(to_json_lines(batch))
        except OSError as error:
            mark_waiting(error)
            raise

    def stop(self) -> None:
        self._file.close()
