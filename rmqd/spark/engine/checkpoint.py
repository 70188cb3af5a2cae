"""The progress in a query's checkpoint, which only Spark writes, and the note of its generation next to it.

The note has the generation's start offsets, and later changes by brokers and operators. A note file never changes:
`note-000007.json` replaces the files before it. So on any file system a note is either complete or missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rmqd.errors import RmqdError
from rmqd.spark.pipelines.pipeline_counts import MicroBatch
from rmqd.spark.source.source_offsets import ByQueue, Offsets, nested_offsets, offsets_by_queue, offsets_in

if TYPE_CHECKING:
    from rmqd.spark.session.hadoop_folder import HadoopFolder

VERSION: Final = 1

_FILE: Final = re.compile(r"note-([0-9]{6,})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationNote:
    """The state of one generation, stored next to its checkpoint."""

    starting: ByQueue | None = None
    """The start offsets of the generation's query; None for the group's offsets on the brokers."""
    reason: str = ""
    """Why the generation was started, as a sentence."""
    told: bool = True
    """Whether `starting` was committed to the brokers. Until then their offsets are outdated."""
    held: ByQueue = field(default_factory=dict)
    """The group's offsets that brokers are known to have on disk. The query commits no lower ones."""
    resets: ByQueue = field(default_factory=dict)
    """Offsets of later resets by operators. The next generation starts there."""

    def to_json(self) -> bytes:
        value = {
            "v": VERSION,
            "starting": None if self.starting is None else nested_offsets(self.starting),
            "reason": self.reason,
            "told": self.told,
            "held": nested_offsets(self.held),
            "resets": nested_offsets(self.resets),
        }
        return json.dumps(value, indent=1).encode()

    @classmethod
    def of(cls, content: bytes) -> GenerationNote:
        """Read the output of `to_json`. Raises RmqdError."""
        try:
            value = json.loads(content)
            if value["v"] != VERSION:
                raise RmqdError(f"the generation file has version {value['v']!r}; expected {VERSION}")
            starting = value["starting"]
            return cls(
                starting=None if starting is None else offsets_by_queue(starting, "starting"),
                reason=str(value["reason"]),
                told=bool(value["told"]),
                held=offsets_by_queue(value["held"], "held"),
                resets=offsets_by_queue(value["resets"], "resets"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RmqdError(f"not a valid generation file: {error!r}") from error


def read_note(folder: HadoopFolder, path: str) -> GenerationNote | None:
    """Return the last note of a generation; None if there is none. Raises RmqdError if it is unreadable."""
    numbers = _note_numbers(folder, path)
    if not numbers:
        return None
    file = f"{path}/{_name(numbers[-1])}"
    try:
        return GenerationNote.of(folder.read(file))
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


OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
METADATA: Final = "metadata"
LOG_VERSION: Final = "v1"

IsWritten = Callable[[MicroBatch], bool]
"""Whether a sink has stored all rows of a batch for good."""


def read_progress(folder: HadoopFolder, path: str, is_written: IsWritten | None) -> ByQueue:
    """Return the end offsets of a query's last finished batch; if there is none, the start offsets of its first batch.

    Raises RmqdError if rmqd did not write the checkpoint.

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
        return _logged(folder, f"{path}/{OFFSETS}/{batch}").positions
    if 0 in _numbers(folder, f"{path}/{OFFSETS}"):
        return _logged(folder, f"{path}/{OFFSETS}/0").new
    return {}


def _query_id(folder: HadoopFolder, path: str) -> str:
    """Return the id of the query. Sinks recognize its batches by this id."""
    try:
        return str(json.loads(folder.read(f"{path}/{METADATA}"))["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise RmqdError(f"{folder.url}/{path}/{METADATA} does not contain the query's id: {error!r}") from error


def _numbers(folder: HadoopFolder, path: str) -> list[int]:
    return [int(name) for name in folder.names(path) if name.isdecimal()]


def _logged(folder: HadoopFolder, path: str) -> Offsets:
    """Return the offsets of rmqd's source. Spark writes a version, a line of metadata, and a line for each source."""
    version, *lines = folder.read(path).decode("utf-8", errors="replace").splitlines() or [""]
    if version != LOG_VERSION:
        raise RmqdError(f"{folder.url}/{path} has version {version!r:.40}; expected {LOG_VERSION}")
    for line in lines[1:]:
        if (found := offsets_in(line)) is not None:
            return found
    raise RmqdError(f"{folder.url}/{path} has no RocketMQ offsets: is it the checkpoint of another query?")
