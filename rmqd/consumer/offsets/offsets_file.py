"""offsets.json: the offsets of a broadcasting group in a local file, in the Java client's format.

The file and its backup are only replaced as a whole, so a crash leaves each of them either old or new. If one is
damaged anyway (a disk, an editor, another program), the other one is used.
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
_IDENTITY: Final = "rmqdIdentity"  # Java reads only the offsetTable
BACKUP_NAME: Final = "offsets.json.bak"


class OffsetsFile:
    """The files of one group. Every method blocks; call them from one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self.backup = directory / BACKUP_NAME
        self.identity = ""
        """The text of the group's identity; empty while it is unknown, and in files of rmqd 0.1.0."""
        self.stored_at = 0.0  # time of the last write of the loaded file (Unix seconds)
        self._stored: bytes | None = None  # known content of the file, or of the backup that replaces it

    @property
    def is_there(self) -> bool:
        """Whether a file existed at `load`, or was saved since."""
        return self._stored is not None

    def load(self) -> dict[MessageQueue, int]:
        """Return the stored offsets, from the backup if the file is damaged or missing; empty for a new group.

        Raises OffsetStoreError if a file exists but cannot be read: the group must not start again without a decision.
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
        """Rename the files of another cluster or namespace, and load the renamed files of this one.

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
        """Write these offsets to disk, and the previous content as the backup. Raises OSError."""
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
            f"{found}; nothing was consumed, and the files are unchanged. To continue, replace {self.path} with a good "
            "copy. To start at the position of consume_from_where, move both files away"
        )


def _read(path: Path) -> tuple[bytes | None, str]:
    """Return a file's content if it is usable, or else the reason; both empty if there is no file."""
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
    """Return the offsets in a file's content. Raises ProtocolError if it is not a valid offsets file."""
    if not content:
        raise ProtocolError("it is empty")
    data = fields.as_object(loose_json.loads(content), "its content")
    if "offsetTable" not in data:
        raise ProtocolError("it has no offsetTable")
    offsets = offsets_from_dict(data["offsetTable"], "offsetTable")
    return {queue: offset for queue, offset in offsets.items() if offset >= 0}


def _content(offsets: Mapping[MessageQueue, int], identity: str) -> bytes:
    """Return the file's content with Java's line breaks and tabs, because users compare such files."""
    entries = ",\n".join(
        f'\t\t{{\n\t\t\t"brokerName":{json.dumps(queue.broker_name)},\n\t\t\t"queueId":{queue.queue_id},'
        f'\n\t\t\t"topic":{json.dumps(queue.topic)}\n\t\t}}:{offset}'
        for queue, offset in sorted(offsets.items())
    )
    whose = f',\n\t"{_IDENTITY}":{json.dumps(identity)}' if identity else ""
    return f'{{\n\t"offsetTable":{{\n{entries}\n\t}}{whose}\n}}'.encode()
