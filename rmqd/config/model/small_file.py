"""Reads a small file that a configuration names, such as a secret or a token."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

MAX_FILE_BYTES: Final = 1 << 20


def read_small_file(path: Path) -> bytes:
    """Read a file, up to one byte more than allowed. Raises OSError, also if it is not a regular file.

    Only regular files are read, because opening a pipe waits for a writer, and reading a device may never end.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name has a NUL character")  # instead of Python's ValueError
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(MAX_FILE_BYTES + 1)
