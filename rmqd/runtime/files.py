"""Writes, locks and watches files of local state. Only a file's owner and group have access, whatever the umask.

Changes are detected by polling. A poll takes a millisecond for a hundred files, and also works if the system sends no
notifications, for example in mounted folders of containers and on network file systems.

The operating system releases a lock when the locking process ends, even after kill -9. So no cleanup is necessary, and
the lock file may remain.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rmqd.errors import InUseError

_Stamp = tuple[int, int, int]  # modification time, size, inode
POLL_SECONDS: Final = 0.3
_LEFT_OUT: Final = {"__pycache__", "node_modules", "site-packages"}


class FileWatch:
    """Watches the files with the given extensions in some folders, and reports changes since the watch was created."""

    def __init__(
        self,
        below: Iterable[Path] = (),
        inside: Iterable[Path] = (),
        endings: Sequence[str] = (".py",),
        before: FileWatch | None = None,
    ) -> None:
        """`below` are folders that are watched with all subfolders; `inside` are folders without their subfolders.

        The new watch adopts the state of `before`, so it also returns changes that `before` has not returned.
        """
        self._below = {path.resolve() for path in below}
        self._inside = {path.resolve() for path in inside}
        self._endings = tuple(endings)
        self._last = dict(self._stamps())
        known: dict[str, _Stamp] = {} if before is None else before._known
        self._known: dict[str, _Stamp] = {path: known.get(path, stamp) for path, stamp in self._last.items()}

    def changes(self) -> list[Path]:
        """Return the files that were changed, created or removed since changes were last returned.

        While a file is being written, the list is empty: changes are returned when two calls in a row find all files in
        the same state.
        """
        stamps = dict(self._stamps())
        differing = {path for path in self._known.keys() | stamps.keys() if self._known.get(path) != stamps.get(path)}
        is_at_rest, self._last = stamps == self._last, stamps
        if not differing or not is_at_rest:
            return []
        self._known = stamps
        return sorted(map(Path, differing))

    def _stamps(self) -> Iterator[tuple[str, _Stamp]]:
        for folder in sorted(self._below):
            for top, folders, names in os.walk(folder):
                folders[:] = [name for name in folders if _is_watched(top, name)]
                yield from self._of(top, names)
        for folder in sorted(self._inside):
            try:
                names = os.listdir(folder)
            except OSError:  # removed, or not readable; os.walk passes over such folders too
                continue
            yield from self._of(str(folder), names)

    def _of(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, _Stamp]]:
        for name in names:
            if not name.endswith(self._endings):
                continue
            path = os.path.join(folder, name)
            try:
                found = os.stat(path)
            except OSError:  # the file was removed meanwhile
                continue
            yield path, (found.st_mtime_ns, found.st_size, found.st_ino)


def _is_watched(top: str, name: str) -> bool:
    return (
        not name.startswith(".") and name not in _LEFT_OUT and not os.path.exists(os.path.join(top, name, "pyvenv.cfg"))
    )


FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents. Existing folders keep their mode."""
    try:
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    except FileNotFoundError:
        make_folder(path.parent)
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def open_file(path: Path | str, flags: int) -> int:
    """Return the descriptor of a file opened with `flags` of os.open. Removes permissions that FILE_MODE lacks."""
    descriptor = os.open(path, flags, FILE_MODE)
    mode = os.fstat(descriptor).st_mode & 0o777
    if mode & ~FILE_MODE:
        with suppress(OSError):  # the file has another owner, or the file system has no permissions
            os.fchmod(descriptor, mode & FILE_MODE)
    return descriptor


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: the content is on disk before the name refers to it. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with os.fdopen(open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def sync_folder(path: Path) -> None:
    """Write a folder's directory entries to disk (fsync), so that new names survive a crash. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync a directory
            raise
    finally:
        os.close(descriptor)


_AT_ONCE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB

_held: dict[Path, int] = {}
_turn = threading.Lock()


def lock_file(path: Path) -> None:
    """Lock a file until this process ends, and create the file if it is missing. Locking it again has no effect.

    Raises InUseError if another process holds the lock, and OSError if the file cannot be locked at all.
    """
    path = path.resolve()
    with _turn:
        if path not in _held:
            _held[path] = _locked(path)


def check_unlocked(path: Path) -> None:
    """Check that a file can be locked, without keeping the lock. Raises like `lock_file`."""
    path = path.resolve()
    with _turn:
        if path not in _held:
            os.close(_locked(path))


def _locked(path: Path) -> int:
    """Return a descriptor that holds the lock. Executed child processes do not inherit the descriptor.

    The file is opened only for reading if possible: a file open for writing keeps its disk from becoming read-only.
    """
    descriptor = open_file(path, os.O_RDONLY | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, _AT_ONCE)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.close(descriptor)  # NFS requires a file open for writing
            descriptor = os.open(path, os.O_RDWR)
            fcntl.flock(descriptor, _AT_ONCE)
        _write_owner(path)
    except BlockingIOError:
        owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise InUseError(path, owner) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _write_owner(path: Path) -> None:
    try:
        path.write_text(f"{os.getpid()} on {socket.gethostname()}\n")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # full disk: the lock is valid without the owner's name
            raise


def _let_go() -> None:
    """Called in a forked child: close the inherited descriptors, which would keep the locks after the parent's end."""
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


MAX_FILE_BYTES: Final = 1 << 20


def read_small_file(path: Path) -> bytes:
    """Read a file, up to one byte more than MAX_FILE_BYTES. Raises OSError, also if it is not a regular file.

    Only regular files are read, because opening a pipe waits for a writer, and reading a device may never end.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name has a NUL character")  # instead of Python's ValueError
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(MAX_FILE_BYTES + 1)
