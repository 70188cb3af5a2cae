"""Files and folders of local state, accessible to their owner and the owner's group whatever the umask."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

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
    """Return a descriptor of a file, which is created if the flags say so. Removes other users' permissions."""
    descriptor = os.open(path, flags, FILE_MODE)
    mode = os.fstat(descriptor).st_mode & 0o777
    if mode & ~FILE_MODE:
        with suppress(OSError):  # the file has another owner, or the disk has no modes
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
    """Write the names in a folder to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync a directory
            raise
    finally:
        os.close(descriptor)
