"""The offsets of a broadcasting group, in this member's file in the Java client's format.

The file and its backup are only replaced as a whole, so after a crash each has either its old or its new content. If
the file is damaged anyway (by a disk, an editor or another program), the backup is used.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from rmqd.consumer.health.causes import make_problem
from rmqd.consumer.services import GroupOffsetStore
from rmqd.errors import OffsetStoreError, ProtocolError
from rmqd.runtime.clock import Clock
from rmqd.runtime.files import lock_file, make_folder, replace_file, sync_folder
from rmqd.runtime.own_threads import call_in_thread
from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.json_body import offsets_from_dict
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

OFFSETS_FILE_NAME: Final = "offsets.json"
_IDENTITY: Final = "rmqdIdentity"  # a key that Java ignores: Java reads only the key offsetTable
BACKUP_FILE_NAME: Final = "offsets.json.bak"


class OffsetsFile:
    """The offsets file of one group, and its backup. Every method blocks; call them from one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / OFFSETS_FILE_NAME
        self.backup = directory / BACKUP_FILE_NAME
        self.identity = ""
        """The cluster, namespace and group of the offsets, as text; empty if unknown, as in files of rmqd 0.1.0."""
        self.stored_at = 0.0  # time of the last write of the loaded file (Unix seconds)
        self.content: bytes | None = None  # content of the file, or of the backup if that was loaded; None if neither

    def load(self) -> dict[MessageQueue, int]:
        """Return the stored offsets, from the backup if the file is damaged or missing; empty for a new group.

        Raises OffsetStoreError if files exist but none can be read: an operator must decide where the group starts.
        """
        content, problem = _read(path := self.path)
        if content is None:
            content, backup_problem = _read(path := self.backup)
            if content is None:
                if problem or backup_problem:
                    raise OffsetStoreError(self._unreadable(problem, backup_problem))
                return {}
            log.warning("offset.backup_used", file=str(self.backup), instead_of=problem or f"{self.path} is missing")
        self.content, self.stored_at = content, path.stat().st_mtime
        self.identity = str(loose_json.loads(content).get(_IDENTITY, ""))
        return _offsets(content)

    def switch_to(self, identity: str) -> dict[MessageQueue, int]:
        """Set the present files of another identity aside, by renaming them. Load and return the offsets of `identity`.

        Raises OSError, OffsetStoreError.
        """
        for path in (self.path, self.backup):
            other, ours = _renamed(path, self.identity), _renamed(path, identity)
            if path.exists():
                path.replace(other)
            if ours.exists():
                ours.replace(path)
        self.content = None
        offsets = self.load()
        self.identity = identity
        return offsets

    def offsets_of(self, identity: str) -> dict[MessageQueue, int]:
        """Return the offsets stored for `identity`, without changing a file. Raises OffsetStoreError.

        An empty `identity` means that it is unknown. Then the offsets of the present file are returned.
        """
        offsets = self.load()
        if not identity or self.identity in ("", identity):
            return offsets
        content, _ = _read(_renamed(self.path, identity))
        return {} if content is None else _offsets(content)

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write these offsets to the file, and the file's previous content to the backup. Raises OSError."""
        content = _content(offsets, self.identity)
        make_folder(self.path.parent)
        if self.content is not None:
            replace_file(self.backup, self.content)
        replace_file(self.path, content)
        self.content = content
        sync_folder(self.path.parent)

    def _unreadable(self, problem: str, backup_problem: str) -> str:
        found = "; ".join(
            text or f"{path} is missing" for path, text in ((self.path, problem), (self.backup, backup_problem))
        )
        return (
            f"{found}; nothing was consumed, and the files are unchanged. To continue, replace {self.path} with a good "
            "copy. To start at the position of consume_from_where, move both files away"
        )


def _renamed(path: Path, identity: str) -> Path:
    """Return the name that the file of `identity` has while the group runs with another identity."""
    return path.with_name(f"{path.name}.{identity.replace('/', '@')}")


def _read(path: Path) -> tuple[bytes | None, str]:
    """Return a file's content, or None and the reason why it is unusable. The reason is empty if there is no file."""
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


LOCK_FILE_NAME: Final = "process.lock"  # no group can have this name, because of the dot
LOG_INTERVAL_SECONDS: Final = 60.0  # interval of log lines about a failing disk


class LocalFileOffsetStore(GroupOffsetStore):
    """The offsets in `<directory>/<group>/offsets.json`. From `open` on, this process has a lock on the directory.

    The file is written in a thread; one write serves all callers that wait. The file keeps the offsets of queues that
    no longer exist, so a queue that returns continues at its offset.
    """

    def __init__(self, directory: str, group: str, clock: Clock, identity: Callable[[], str] = str) -> None:
        """`identity` returns the group's identity as text; an empty text while the id of the cluster is unknown."""
        super().__init__()
        self._is_noted = True  # whether the file on disk contains the identity
        self._identity = identity
        self._directory = Path(directory)
        self._file = OffsetsFile(self._directory / group)
        self._clock = clock
        self._wanted: dict[MessageQueue, int] = {}  # offsets to write
        self._writing: asyncio.Task[OSError | None] | None = None
        self._failing_since: float | None = None
        self._reported: tuple[str, float] = "", 0.0  # last logged reason of a failed write, and when (monotonic)

    async def open(self) -> None:
        """Lock the directory and read the file. Raises OffsetStoreError, InUseError."""
        try:
            await call_in_thread(self._prepare)
            stored = await call_in_thread(self._file.load)
        except OSError as error:
            raise OffsetStoreError(f"{self._directory} cannot be used: {_reason(error)}") from error
        self.committed, self._wanted = dict(stored), dict(stored)
        self.committed_at = dict.fromkeys(stored, self._file.stored_at)

    @property
    def is_new(self) -> bool:
        """Whether the group has no offsets file yet; known after `open`."""
        return self._file.content is None

    async def close(self) -> None:
        """Write all offsets that are not written yet. The process keeps the lock on the directory."""
        await self._flush()

    async def read(self, queue: MessageQueue) -> int | None:
        self._belong()
        return self._wanted[queue] if queue in self.committed else None

    async def store_start_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Create a new group's file with its start offsets. `offsets` may be empty. Raises OffsetStoreError."""
        for queue, offset in offsets.items():
            self._want(queue, offset, downward=False)
        if (error := await self._flush()) is not None:
            raise OffsetStoreError(f"{self._file.path} cannot be written: {_reason(error)}") from error

    def _belong(self) -> None:
        """Switch to the files of the current cluster and namespace, if the opened files belong to others.

        `open` cannot do this, because the cluster's id is unknown at that time. Raises OffsetStoreError.
        """
        identity, file = self._identity(), self._file
        if not identity or identity == file.identity:
            return
        if not file.identity:  # the file is new, or was written by rmqd 0.1.0
            file.identity, self._is_noted = identity, self.is_new
            return
        log.warning("offset.of_other_cluster", file=str(file.path), identity=file.identity, instead_of=identity)
        try:
            stored = file.switch_to(identity)
        except OSError as error:
            raise OffsetStoreError(f"{file.path} cannot be renamed: {_reason(error)}") from error
        self.committed, self._wanted = dict(stored), dict(stored)

    async def commit(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        """Store an offset. Raises OffsetStoreError if the write fails; the next write includes the offset again."""
        self._want(queue, offset, downward=downward)
        if self.committed.get(queue) != self._wanted[queue] and (error := await self._flush()) is not None:
            raise OffsetStoreError(f"{self._file.path} cannot be written: {_reason(error)}") from error

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> bool:
        for queue, offset in offsets.items():
            self._want(queue, offset, downward=False)
        return await self._flush() is None

    def _want(self, queue: MessageQueue, offset: int, *, downward: bool) -> None:
        if downward or offset > self._wanted.get(queue, -1):
            self._wanted[queue] = offset

    def _prepare(self) -> None:
        make_folder(self._directory)
        lock_file(self._directory / LOCK_FILE_NAME)

    async def _flush(self) -> OSError | None:
        """Write the offsets if they have changed. Return the error. Callers during a write share the next write."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        if self._wanted == self.committed and not self.is_new and self._is_noted:
            return None
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name=f"write {self._file.path}")
        return await asyncio.shield(self._writing)

    async def _write(self) -> OSError | None:
        """Write the file once. Return the error. If the caller is cancelled, the thread still finishes."""
        offsets, self._is_noted = dict(self._wanted), True
        try:
            await call_in_thread(partial(self._file.save, offsets))
        except OSError as error:
            self._failed(error)
            return error
        finally:
            self._writing = None
        now = self._clock.wall()
        moved = [queue for queue, offset in offsets.items() if self.committed.get(queue) != offset]
        self.committed.update(offsets)
        self.committed_at.update(dict.fromkeys(moved, now))
        if self._failing_since is not None:
            seconds = round(self._clock.monotonic() - self._failing_since)
            log.info("offset.stored_again", file=str(self._file.path), after_seconds=seconds)
            self._failing_since, self._reported, self.problem = None, ("", 0.0), None
        return None

    def _failed(self, error: OSError) -> None:
        """Report a failed write. A new reason is logged at once, and a lasting one once a minute."""
        self.failures += 1
        now = self._clock.monotonic()
        since = self._failing_since = now if self._failing_since is None else self._failing_since
        reason, (last_reason, at) = _reason(error), self._reported
        if reason == last_reason and now - at < LOG_INTERVAL_SECONDS:
            return
        self._reported = reason, now
        self.problem = make_problem("offsets_not_stored", f"{self._file.path} cannot be written: {reason}")
        log.error("offset.not_stored", file=str(self._file.path), error=reason, for_seconds=round(now - since))


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
