"""Reads a query's offsets from its Spark checkpoint. Reads and writes the note of a checkpoint generation.

Only Spark writes the checkpoint. The note is a file next to the checkpoint, with the generation's start offsets and
later changes by brokers and operators. A note file is never changed: a new file, for example `note-000007.json`,
replaces the files with lower numbers. So on any file system a note is either complete or missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rmqd.errors import RmqdError
from rmqd.spark.pipelines.pipeline_counts import MicroBatch
from rmqd.spark.source.source_offsets import (
    ByQueue,
    SourceOffsets,
    offsets_tree,
    parse_offsets_tree,
    parse_reported_offsets,
)

if TYPE_CHECKING:
    from rmqd.spark.session.hadoop_folder import HadoopFolder

NOTE_VERSION: Final = 1

_FILE: Final = re.compile(r"note-([0-9]{6,})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationNote:
    """The state of one checkpoint generation, stored in a file next to the checkpoint."""

    start_offsets: ByQueue | None = None
    """The offsets at which the generation's query starts. If None, it starts at the group's offsets on the brokers."""
    reason: str = ""
    """Why the generation was started, as text for operators."""
    is_committed: bool = True
    """Whether `start_offsets` was committed to the brokers. Until then, the brokers' offsets are outdated."""
    flushed_offsets: ByQueue = field(default_factory=dict)
    """The group's offsets that brokers are known to have on disk. The query never commits lower offsets."""
    reset_offsets: ByQueue = field(default_factory=dict)
    """Offsets of operators' resets during this generation. The next generation starts at these offsets."""

    def to_json(self) -> bytes:
        value = {
            "v": NOTE_VERSION,
            "starting": None if self.start_offsets is None else offsets_tree(self.start_offsets),
            "reason": self.reason,
            "told": self.is_committed,
            "held": offsets_tree(self.flushed_offsets),
            "resets": offsets_tree(self.reset_offsets),
        }
        return json.dumps(value, indent=1).encode()

    @classmethod
    def from_json(cls, content: bytes) -> GenerationNote:
        """Parse the output of `to_json`. Raises RmqdError if the content is not valid."""
        try:
            value = json.loads(content)
            if value["v"] != NOTE_VERSION:
                raise RmqdError(f"its format is {value['v']!r}; expected {NOTE_VERSION}; use the rmqd that wrote it")
            starting = value["starting"]
            return cls(
                start_offsets=None if starting is None else parse_offsets_tree(starting, "starting"),
                reason=str(value["reason"]),
                is_committed=bool(value["told"]),
                flushed_offsets=parse_offsets_tree(value["held"], "held"),
                reset_offsets=parse_offsets_tree(value["resets"], "resets"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RmqdError(f"not a valid generation file: {error!r}") from error


def read_note(folder: HadoopFolder, path: str) -> GenerationNote | None:
    """Return the newest note in the generation's folder `path`, or None. Raises RmqdError if the note is invalid."""
    numbers = _note_numbers(folder, path)
    if not numbers:
        return None
    file = f"{path}/{_name(numbers[-1])}"
    try:
        return GenerationNote.from_json(folder.read(file))
    except RmqdError as error:
        raise RmqdError(f"{folder.url}/{file}: {error}") from error


def write_note(folder: HadoopFolder, path: str, note: GenerationNote) -> None:
    numbers = _note_numbers(folder, path)
    folder.put(f"{path}/{_name(numbers[-1] + 1 if numbers else 0)}", note.to_json())
    for number in numbers:
        folder.delete(f"{path}/{_name(number)}")


def _note_numbers(folder: HadoopFolder, path: str) -> list[int]:
    return sorted(int(found[1]) for name in folder.names(path) if (found := _FILE.fullmatch(name)))


def _name(number: int) -> str:
    return f"note-{number:06}.json"


OFFSETS_FOLDER: Final = "offsets"
COMMITS_FOLDER: Final = "commits"
METADATA_FILE: Final = "metadata"
OFFSET_LOG_VERSION: Final = "v1"

IsWritten = Callable[[MicroBatch], bool]
"""Function that returns whether the sink has permanently stored all rows of a micro-batch."""


def read_end_offsets(
    folder: HadoopFolder, path: str, is_written: IsWritten | None, topics: Sequence[str] = ()
) -> ByQueue:
    """Return the end offsets of a query's last finished batch, from the checkpoint in the folder `path`.

    If no batch is finished, return the start offsets of the first batch. Return an empty mapping for a new checkpoint.
    Raises RmqdError if the checkpoint does not belong to a query on RocketMQ. `topics` are the topics of the group: a
    pipeline may join other streams of RocketMQ.

    Spark records a batch as finished after the sink has stored it. The driver may end between these two steps. So the
    next planned batch also counts as finished if `is_written` returns True for it. Otherwise a query with a new
    checkpoint would write the rows of this batch again, and the sink would not recognize them.
    """
    batch = max(_numbers(folder, f"{path}/{COMMITS_FOLDER}"), default=-1)
    following = batch + 1
    if is_written is not None and following in _numbers(folder, f"{path}/{OFFSETS_FOLDER}"):
        plan = folder.read(f"{path}/{OFFSETS_FOLDER}/{following}")
        if is_written(MicroBatch(_query_id(folder, path), following, plan)):
            batch = following
    if batch >= 0:
        return _logged(folder, f"{path}/{OFFSETS_FOLDER}/{batch}", topics).ends
    if 0 in _numbers(folder, f"{path}/{OFFSETS_FOLDER}"):
        return _logged(folder, f"{path}/{OFFSETS_FOLDER}/0", topics).new_queue_starts
    return {}


def _query_id(folder: HadoopFolder, path: str) -> str:
    """Return the query's id in the checkpoint. Sinks recognize the query's batches by this id."""
    try:
        return str(json.loads(folder.read(f"{path}/{METADATA_FILE}"))["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise RmqdError(f"{folder.url}/{path}/{METADATA_FILE} does not contain the query's id: {error!r}") from error


def _numbers(folder: HadoopFolder, path: str) -> list[int]:
    return [int(name) for name in folder.names(path) if name.isdecimal()]


def _logged(folder: HadoopFolder, path: str, topics: Sequence[str]) -> SourceOffsets:
    """Return rmqd's offsets in a file of Spark's offset log. Its lines are: version, metadata, one for each source."""
    version, *lines = folder.read(path).decode("utf-8", errors="replace").splitlines() or [""]
    if version != OFFSET_LOG_VERSION:
        raise RmqdError(f"{folder.url}/{path} has version {version!r:.40}; expected {OFFSET_LOG_VERSION}")
    found = [one for line in lines[1:] if (one := parse_reported_offsets(line)) is not None]
    if not found:
        raise RmqdError(f"{folder.url}/{path} has no RocketMQ offsets: is it the checkpoint of another query?")
    unknown = found[0] if len(found) == 1 else SourceOffsets({})  # the group's source has no queue yet
    return next((one for one in found if any(queue.topic in topics for queue in one.ends)), unknown)
