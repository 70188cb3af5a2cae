"""A file lock that a process holds until it ends, so that two processes never write the same files.

The operating system releases it when the process ends, even after kill -9. So no cleanup is necessary, and the lock
file may remain.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
from pathlib import Path
from typing import Final

from rmqd.consumer.offsets.private_files import open_file
from rmqd.errors import InUseError

_AT_ONCE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB

_held: dict[Path, int] = {}
_turn = threading.Lock()


def hold(path: Path) -> None:
    """Lock a file and create it if it is missing. A lock that this process already holds stays.

    Raises InUseError if another process holds it, and OSError if it cannot be locked at all.
    """
    path = path.resolve()
    with _turn:
        if path not in _held:
            _held[path] = _locked(path)


def check_free(path: Path) -> None:
    """Check that a file can be locked, without keeping the lock. Raises like `hold`."""
    path = path.resolve()
    with _turn:
        if path not in _held:
            os.close(_locked(path))


def _locked(path: Path) -> int:
    """Return a descriptor that holds the lock. Executed child processes do not inherit it.

    It is opened for reading if that is sufficient: a file open for writing prevents its disk from becoming read-only.
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
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # full disk: keep the lock without the owner's name
            raise


def _let_go() -> None:
    """Close the inherited descriptors in a forked child, which would keep the lock after the parent's end."""
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
