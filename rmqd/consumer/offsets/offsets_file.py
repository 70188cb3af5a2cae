"""offsets.json: the offsets of a broadcasting group in a local file, in the Java client's shape.

Both files are only ever replaced as a whole, so a crash at any instant leaves each of them old or new. What damages one
all the same (a disk, a hand, a program that writes in place) is met by the other one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from rmqd.consumer.offsets.private_files import make_folder, replace_file, sync_folder
from rmqd.errors import OffsetStoreError, ProtocolError
from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.queue_map import offsets_from_dict
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

FILE_NAME: Final = "offsets.json"
_IDENTITY: Final = "rmqdIdentity"  # Java reads the offsetTable alone
BACKUP_NAME: Final = "offsets.json.bak"


class OffsetsFile:
    """The files of one group. Every method blocks; to be called from one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self.backup = directory / BACKUP_NAME
        self.identity = ""
        """The text of the group's identity; empty while it is not known, and in files of rmqd 0.1.0."""
        self.stored_at = 0.0  # when what `load` returned was written (Unix seconds)
        self._stored: bytes | None = None  # what the file, or the backup in its place, is known to hold

    @property
    def is_there(self) -> bool:
        """Whether something was stored before, or is now; known after `load`."""
        return self._stored is not None

    def load(self) -> dict[MessageQueue, int]:
        """The offsets that are stored; the backup's where the file is damaged or missing; none in a new group.

        Raises OffsetStoreError where something was stored and cannot be read: the group must not begin anew unasked.
        """
        content, problem = _read(path := self.path)
        if content is None:
            content, backup_problem = _read(path := self.backup)
            if content is None:
                if problem or backup_problem:
                    raise OffsetStoreError(self._unreadable(problem, backup_problem))
                return {}
            log.warning("offset.backup_used", file=str(self.backup), instead_of=problem or f"{self.path} is missing")
        self._stored, self.stored_at = content, path.stat().st_mtime
        self.identity = str(loose_json.loads(content).get(_IDENTITY, ""))
        return _offsets(content)

    def change_to(self, identity: str) -> dict[MessageQueue, int]:
        """Put the files aside, which are of another cluster or namespace, and load those that were put aside for this.

        Raises OSError, OffsetStoreError.
        """
        for path in (self.path, self.backup):
            other, ours = (path.with_name(f"{path.name}.{one.replace('/', '@')}") for one in (self.identity, identity))
            if path.exists():
                path.replace(other)
            if ours.exists():
                ours.replace(path)
        self._stored = None
        offsets = self.load()
        self.identity = identity
        return offsets

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store these offsets on the disk, and what was stored before as the backup. Raises OSError."""
        content = _content(offsets, self.identity)
        make_folder(self.path.parent)
        if self._stored is not None:
            replace_file(self.backup, self._stored)
        replace_file(self.path, content)
        self._stored = content
        sync_folder(self.path.parent)

    def _unreadable(self, problem: str, backup_problem: str) -> str:
        found = "; ".join(
            text or f"{path} is missing" for path, text in ((self.path, problem), (self.backup, backup_problem))
        )
        return (
            f"{found}. Nothing was consumed, and the files are as they were found. Put a good copy in the place of "
            f"{self.path}, and the group goes on from it; or move both files away, and it begins anew where its "
            "consume_from_where says"
        )


def _read(path: Path) -> tuple[bytes | None, str]:
    """A file's content if it can be used, and else why not; no reason where there is no file."""
    try:
        content = path.read_bytes()
        _offsets(content)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path} cannot be read: {error.strerror}"
    except ProtocolError as error:
        return None, f"{path} is damaged: {error}"
    return content, ""


def _offsets(content: bytes) -> dict[MessageQueue, int]:
    """The offsets that a file's content has. Raises ProtocolError for what is no offsets file."""
    if not content:
        raise ProtocolError("it is empty")
    data = fields.as_object(loose_json.loads(content), "its content")
    if "offsetTable" not in data:
        raise ProtocolError("it has no offsetTable")
    offsets = offsets_from_dict(data["offsetTable"], "offsetTable")
    return {queue: offset for queue, offset in offsets.items() if offset >= 0}


def _content(offsets: Mapping[MessageQueue, int], identity: str) -> bytes:
    """The file's content for these offsets, with Java's line breaks and tabs, as people compare such files."""
    entries = ",\n".join(
        f'\t\t{{\n\t\t\t"brokerName":{json.dumps(queue.broker_name)},\n\t\t\t"queueId":{queue.queue_id},'
        f'\n\t\t\t"topic":{json.dumps(queue.topic)}\n\t\t}}:{offset}'
        for queue, offset in sorted(offsets.items())
    )
    whose = f',\n\t"{_IDENTITY}":{json.dumps(identity)}' if identity else ""
    return f'{{\n\t"offsetTable":{{\n{entries}\n\t}}{whose}\n}}'.encode()
