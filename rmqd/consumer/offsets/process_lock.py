"""A lock that a process holds until it ends: two processes that write the same files would undo each other's work.

The operating system lets go of it when the process is gone, by kill -9 too. So there is nothing to clean up, and the
lock file may stay where it is.
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
    """Lock a file, which is made where it is missing; one that this process holds already stays held.

    Raises InUseError where another process has it, and OSError where it can't be locked at all.
    """
    path = path.resolve()
    with _turn:
        if path not in _held:
            _held[path] = _locked(path)


def check_free(path: Path) -> None:
    """Lock a file and let go of it again. Raises as `hold` does."""
    path = path.resolve()
    with _turn:
        if path not in _held:
            os.close(_locked(path))


def _locked(path: Path) -> int:
    """A descriptor that has the lock; children that are executed do not inherit it.

    It is open for reading where that is enough: a file open for writing keeps its disk from being made read-only.
    """
    descriptor = open_file(path, os.O_RDONLY | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, _AT_ONCE)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            os.close(descriptor)  # NFS wants it open for writing
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
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # a full disk: the lock holds, without its owner's name
            raise


def _let_go() -> None:
    """In a forked child: what it has inherited would keep the lock after the parent's end."""
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
