"""A small disk that tests can fill or make read-only. Needs root, and a kernel that allows mounts."""

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
        """Fill the free space."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(PAGE_BYTES))

    def empty(self) -> None:
        """Free the space."""
        self._filler.unlink()

    def read_only(self, wanted: bool) -> None:
        """Remount read-only, as the kernel does with a damaged disk, or writable."""
        _run("mount", "-o", f"remount,{'ro' if wanted else 'rw'}", str(self.path))


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Mount a small disk during the block. The test is skipped if mounting is not allowed."""
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
    """Return the OSError of a system call on a full disk, or of another disk fault."""
    import os

    return OSError(number, os.strerror(number))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
