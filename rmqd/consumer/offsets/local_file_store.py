"""The offsets of a broadcasting group: in a file of this member, written every few seconds and at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.clock import Clock
from rmqd.consumer.offsets import process_lock
from rmqd.consumer.offsets.offsets_file import OffsetsFile
from rmqd.consumer.offsets.private_files import make_folder
from rmqd.consumer.services import OffsetWatcher
from rmqd.errors import OffsetStoreError
from rmqd.own_threads import in_own_thread
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

LOCK_NAME: Final = "process.lock"  # no group can have this name, as it has a dot
REMIND_SECONDS: Final = 60.0  # between two lines about a disk that takes nothing


class LocalFileOffsetStore:
    """Keeps `<directory>/<group>/offsets.json`, and this process's lock on the directory from the first use on.

    The file is written in a thread, once for everybody who wants it written meanwhile. It keeps the offsets of queues
    that are gone: a queue that comes back goes on where it was left.
    """

    def __init__(self, directory: str, group: str, clock: Clock, identity: Callable[[], str] = str) -> None:
        """`identity` gives the text of the group's identity; empty while its cluster has no id that is known."""
        self.committed: dict[MessageQueue, int] = {}  # as the file has them
        self.committed_at: dict[MessageQueue, float] = {}  # Unix seconds of the last write that moved the queue
        self.failures = 0
        self._is_noted = True  # the file has its identity
        self.carries_until = 0.0
        self._identity = identity
        self._directory = Path(directory)
        self._file = OffsetsFile(self._directory / group)
        self._clock = clock
        self._wanted: dict[MessageQueue, int] = {}  # as the file should have them
        self._writing: asyncio.Task[OSError | None] | None = None
        self._failing_since: float | None = None
        self._reported: tuple[str, float] = "", 0.0  # the last reason that was logged, and when

    async def open(self) -> None:
        """Lock the directory and read the file. Raises OffsetStoreError, InUseError."""
        try:
            await in_own_thread(self._prepare)
            stored = await in_own_thread(self._file.load)
        except OSError as error:
            raise OffsetStoreError(f"{self._directory} cannot be used: {_reason(error)}") from error
        self.committed, self._wanted = dict(stored), dict(stored)
        self.committed_at = dict.fromkeys(stored, self._file.stored_at)

    @property
    def is_new(self) -> bool:
        """Whether the group has no file yet; known when it is open."""
        return not self._file.is_there

    async def close(self) -> None:
        """Wait for a write under way, and try once more to store what is not. The lock stays with the process."""
        await self._flush()

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset; None for a queue that the file does not have. Raises OffsetStoreError."""
        self._belong()
        return self._wanted[queue] if queue in self.committed else None

    async def found(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Make the file of a new group, with where it begins; also with none. Raises OffsetStoreError."""
        for queue, offset in offsets.items():
            self._want(queue, offset, downward=False)
        if (error := await self._flush()) is not None:
            raise OffsetStoreError(f"{self._file.path} cannot be written: {_reason(error)}") from error

    def _belong(self) -> None:
        """Use the offsets of this cluster and namespace alone: the file may be of another one that the group left.

        The cluster is known when its queues are, so not yet when the file is opened.
        """
        identity, file = self._identity(), self._file
        if not identity or identity == file.identity:
            return
        if not file.identity:  # of a new group, or of rmqd 0.1.0
            file.identity, self._is_noted = identity, self.is_new
            return
        log.warning("offset.of_other_cluster", file=str(file.path), identity=file.identity, instead_of=identity)
        try:
            stored = file.change_to(identity)
        except OSError as error:
            raise OffsetStoreError(f"{file.path} cannot be put aside: {_reason(error)}") from error
        self.committed, self._wanted = dict(stored), dict(stored)

    def take_over(
        self, queue: MessageQueue, offset: int | None, watcher: OffsetWatcher | None = None, *, in_peace: bool = True
    ) -> None:
        """Do nothing: nobody else moves the offsets of a member's own file."""

    def forget(self, queue: MessageQueue) -> None:
        """Do nothing: the file keeps the offset of a queue that is gone, which may come back."""

    async def commit(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        """Store an offset. Raises OffsetStoreError, and the next write tries it again.

        An offset that is not above the stored one is left out, unless an operator's reset goes `downward`.
        """
        self._want(queue, offset, downward=downward)
        if self.committed.get(queue) != self._wanted[queue] and (error := await self._flush()) is not None:
            raise OffsetStoreError(f"{self._file.path} cannot be written: {_reason(error)}") from error

    async def commit_upward(
        self, queue: MessageQueue, offset: int, may_commit: Callable[[], bool] = lambda: True
    ) -> bool:
        """Commit for a queue that is being given up; there is no next owner. Raises OffsetStoreError."""
        await self.commit(queue, offset)
        return True

    async def settled(self, queue: MessageQueue, offset: int, until: float) -> bool:
        """Return at once: writes to the file end in their order."""
        return False

    def wrote(self, queue: MessageQueue, stored: int) -> bool:
        """Return True: no other member writes the file."""
        return True

    async def carry(
        self, queue: MessageQueue, offset: int, on: RemotingConnection, may_commit: Callable[[], bool]
    ) -> None:
        """Return None: brokers have no offsets of the group."""

    def doubt(self) -> None:
        """Do nothing: nobody else writes to the file."""

    def may_be_lost(self, queue: MessageQueue) -> bool:
        """Return False: nobody else writes the file."""
        return False

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Store many offsets. Returns whether they are stored; the next round tries again what is not."""
        for queue, offset in offsets.items():
            self._want(queue, offset, downward=False)
        return await self._flush() is None

    def _want(self, queue: MessageQueue, offset: int, *, downward: bool) -> None:
        if downward or offset > self._wanted.get(queue, -1):
            self._wanted[queue] = offset

    def _prepare(self) -> None:
        make_folder(self._directory)
        process_lock.hold(self._directory / LOCK_NAME)

    async def _flush(self) -> OSError | None:
        """Write what is wanted now. Callers that come while a write is under way share the next one."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        if self._wanted == self.committed and not self.is_new and self._is_noted:
            return None
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name=f"write {self._file.path}")
        return await asyncio.shield(self._writing)

    async def _write(self) -> OSError | None:
        """Write once, and log how it went. The caller may be cancelled; the thread goes on to its end all the same."""
        offsets, self._is_noted = dict(self._wanted), True
        try:
            await in_own_thread(partial(self._file.save, offsets))
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
            self._failing_since, self._reported = None, ("", 0.0)
        return None

    def _failed(self, error: OSError) -> None:
        """Log a new failure at once, and one that goes on once a minute."""
        self.failures += 1
        now = self._clock.monotonic()
        since = self._failing_since = now if self._failing_since is None else self._failing_since
        reason, (last_reason, at) = _reason(error), self._reported
        if reason == last_reason and now - at < REMIND_SECONDS:
            return
        self._reported = reason, now
        log.error("offset.not_stored", file=str(self._file.path), error=reason, for_seconds=round(now - since))


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
