"""Detects changed files in folders by polling.

A poll takes a millisecond for a hundred files and needs only the standard library. It also works where the system sends
no notifications: in mounted folders of containers, and on network file systems.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

_Stamp = tuple[int, int, int]  # modification time, size, inode
LOOK_SECONDS: Final = 0.3
_LEFT_OUT: Final = {"__pycache__", "node_modules", "site-packages"}


class FileWatch:
    """The files with given extensions in some folders. Files that exist at the creation are known, so only later
    changes count.
    """

    def __init__(
        self,
        below: Iterable[Path] = (),
        inside: Iterable[Path] = (),
        endings: Sequence[str] = (".py",),
        before: FileWatch | None = None,
    ) -> None:
        """`below` are folders with all their subfolders; `inside` are folders without them.

        The state that `before` knew is adopted: changes that it has not returned are returned here.
        """
        self._below = {path.resolve() for path in below}
        self._inside = {path.resolve() for path in inside}
        self._endings = tuple(endings)
        self._last = dict(self._stamps())
        known: dict[str, _Stamp] = {} if before is None else before._known
        self._known: dict[str, _Stamp] = {path: known.get(path, stamp) for path, stamp in self._last.items()}

    def changes(self) -> list[Path]:
        """Return the files that were changed, created or removed since the last call. Empty while a file is being
        written.

        Files count as written when two polls in a row find the same state.
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
            if folder.is_dir():
                yield from self._of(str(folder), os.listdir(folder))

    def _of(self, folder: str, names: Iterable[str]) -> Iterator[tuple[str, _Stamp]]:
        for name in names:
            if not name.endswith(self._endings):
                continue
            path = os.path.join(folder, name)
            try:
                found = os.stat(path)
            except OSError:  # removed meanwhile
                continue
            yield path, (found.st_mtime_ns, found.st_size, found.st_ino)


def _is_watched(top: str, name: str) -> bool:
    return (
        not name.startswith(".") and name not in _LEFT_OUT and not os.path.exists(os.path.join(top, name, "pyvenv.cfg"))
    )
