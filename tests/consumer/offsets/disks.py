"""A disk that is small enough to be filled, and can be made read-only; for root alone, where the kernel allows it."""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE_BYTES = 4096


class SmallDisk:
    """A tmpfs of 64 KiB at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leave no room."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(PAGE_BYTES))

    def empty(self) -> None:
        """Give the room back."""
        self._filler.unlink()

    def read_only(self, wanted: bool) -> None:
        """As a disk becomes when the kernel finds it damaged."""
        _run("mount", "-o", f"remount,{'ro' if wanted else 'rw'}", str(self.path))


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Mount one for the length of the block; the test is skipped where that is not allowed."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        _run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a disk")
    try:
        yield SmallDisk(path)
    finally:
        _run("umount", "--lazy", str(path))


def disk_error(number: int = errno.ENOSPC) -> OSError:
    """What a full disk, or one with another fault, has system calls fail with."""
    import os

    return OSError(number, os.strerror(number))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
