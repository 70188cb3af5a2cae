"""Reads the group's progress from a query's checkpoint. Only Spark writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from rmqd.errors import RmqdError
from rmqd.spark.pipelines.micro_batch import MicroBatch
from rmqd.spark.source.offsets import ByQueue, Offsets

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
METADATA: Final = "metadata"
LOG_VERSION: Final = "v1"

IsWritten = Callable[[MicroBatch], bool]
"""Whether a sink has stored all rows of a batch for good."""


class Folder(Protocol):
    """A folder like HadoopFolder. Paths are relative, with `/` between their parts. Raises RmqdError."""

    @property
    def url(self) -> str:
        """URL of the folder, in Spark's form."""

    def names(self, path: str = "") -> list[str]:
        """Return the names in a folder, sorted; empty if the folder is missing."""

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""

    def put(self, path: str, content: bytes) -> None:
        """Write a file atomically."""

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""


@dataclass(frozen=True, slots=True)
class Done:
    """The progress of a query. `batch` is the last finished batch; -1 if there is none."""

    batch: int = -1
    positions: ByQueue = field(default_factory=dict)
    """End offsets of that batch; if there is none, the known start offsets of the first batch."""


def read_done(folder: Folder, path: str, is_written: IsWritten | None = None) -> Done:
    """Return the progress of a checkpoint's query. Raises RmqdError if rmqd did not write the checkpoint.

    Spark records a batch after the sink has it, and a driver may end between the two. `is_written` checks whether the
    sink has the batch after the last recorded one. If so, that batch counts as finished: otherwise a query with another
    checkpoint would write its rows again, to a sink that cannot recognize them.
    """
    batch = max(_numbers(folder, f"{path}/{COMMITS}"), default=-1)
    following = batch + 1
    if is_written is not None and following in _numbers(folder, f"{path}/{OFFSETS}"):
        plan = folder.read(f"{path}/{OFFSETS}/{following}")
        if is_written(MicroBatch(_query_id(folder, path), following, plan)):
            batch = following
    if batch >= 0:
        return Done(batch, _logged(folder, f"{path}/{OFFSETS}/{batch}").positions)
    if 0 in _numbers(folder, f"{path}/{OFFSETS}"):
        return Done(-1, _logged(folder, f"{path}/{OFFSETS}/0").new)
    return Done()


def _query_id(folder: Folder, path: str) -> str:
    """Return the id of the query. Sinks recognize its batches by this id."""
    try:
        return str(json.loads(folder.read(f"{path}/{METADATA}"))["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise RmqdError(f"{folder.url}/{path}/{METADATA} does not contain the query's id: {error!r}") from error


def _numbers(folder: Folder, path: str) -> list[int]:
    return [int(name) for name in folder.names(path) if name.isdecimal()]


def _logged(folder: Folder, path: str) -> Offsets:
    """Return the offsets of rmqd's source. Spark writes a version, a line of metadata, and a line for each source."""
    version, *lines = folder.read(path).decode("utf-8", errors="replace").splitlines() or [""]
    if version != LOG_VERSION:
        raise RmqdError(f"{folder.url}/{path} has version {version!r:.40}; expected {LOG_VERSION}")
    for line in lines[1:]:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "q" in value:
            return Offsets.of(value)
    raise RmqdError(f"{folder.url}/{path} has no RocketMQ offsets: is it the checkpoint of another query?")
