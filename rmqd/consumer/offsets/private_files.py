"""Files and folders of local state: for their owner and the owner's group, whatever the umask lets others do."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750


def make_folder(path: Path) -> None:
    """Make a folder and those around it that are missing; one that is there keeps the mode that somebody gave it."""
    try:
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    except FileNotFoundError:
        make_folder(path.parent)
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def open_file(path: Path | str, flags: int) -> int:
    """A descriptor of a file, which is made where the flags say so; what others may do with an older one is taken."""
    descriptor = os.open(path, flags, FILE_MODE)
    mode = os.fstat(descriptor).st_mode & 0o777
    if mode & ~FILE_MODE:
        with suppress(OSError):  # somebody else's file, or a disk that has no modes
            os.fchmod(descriptor, mode & FILE_MODE)
    return descriptor
