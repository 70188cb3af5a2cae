"""Reads from a query's checkpoint how far the group is. Spark alone writes it."""

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
"""Whether a sink has all rows of a batch, so that they stay whatever happens to the query."""


class Folder(Protocol):
    """A folder, as HadoopFolder is one. Paths are relative, with `/` between their parts. Raises RmqdError."""

    @property
    def url(self) -> str:
        """The checkpoint's place as Spark takes it, as a URL."""

    def names(self, path: str = "") -> list[str]:
        """What is in a folder, sorted; nothing where there is no such folder."""

    def read(self, path: str) -> bytes:
        """The content of a small file of the checkpoint."""

    def put(self, path: str, content: bytes) -> None:
        """Write a file in one step."""

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""


@dataclass(frozen=True, slots=True)
class Done:
    """How far a query is. `batch` is the last one that is done; -1 if none is."""

    batch: int = -1
    positions: ByQueue = field(default_factory=dict)
    """The offsets at which that batch ended; if none is done, those at which the first one starts, as far as known."""


def read_done(folder: Folder, path: str, is_written: IsWritten | None = None) -> Done:
    """How far the query of a checkpoint is. Raises RmqdError if no query of rmqd has written the checkpoint.

    Spark notes that a batch is done after the sink has it, and a driver may end between the two. `is_written` says
    whether the sink has the batch after the last one that Spark has noted. If so, that batch counts as done: otherwise
    a query that begins from another checkpoint would write its rows again, to a sink that cannot recognise them.
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
    """The id of the query, by which sinks know its batches."""
    try:
        return str(json.loads(folder.read(f"{path}/{METADATA}"))["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise RmqdError(f"{folder.url}/{path}/{METADATA} does not tell the query's id: {error!r}") from error


def _numbers(folder: Folder, path: str) -> list[int]:
    return [int(name) for name in folder.names(path) if name.isdecimal()]


def _logged(folder: Folder, path: str) -> Offsets:
    """The offsets of our source: Spark writes a version, a line of its own, and one for each source."""
    version, *lines = folder.read(path).decode("utf-8", errors="replace").splitlines() or [""]
    if version != LOG_VERSION:
        raise RmqdError(f"{folder.url}/{path} is of version {version!r:.40}, and this rmqd reads {LOG_VERSION}")
    for line in lines[1:]:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "q" in value:
            return Offsets.of(value)
    raise RmqdError(f"{folder.url}/{path} has no offsets of RocketMQ: is it the checkpoint of another query?")
