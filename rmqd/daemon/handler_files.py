"""The files of handlers, for `rmqd run --reload`: a package, or a single module and the files next to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.plugins.entry_points import installed_entry_points
from rmqd.plugins.handler_catalogue import HANDLER_ENTRY_POINTS
from rmqd.runtime.files import FileWatch

_LIBRARIES: Final = ("site-packages", "dist-packages")


class HandlerFiles:
    """Watches the files of all handlers of a configuration. Both methods block."""

    def __init__(self, config: RootConfig, before: HandlerFiles | None = None) -> None:
        """Create it before workers import the files, so that no edit is missed. It replaces `before` (FileWatch)."""
        known = {} if before is None else before._watches
        self._watches: dict[str, FileWatch] = {
            name: _watch_of(group, known.get(name)) for name, group in config.groups.items()
        }

    def changes(self) -> dict[str, list[Path]]:
        """Return the files that were changed since the last call, by group."""
        return {name: files for name, watch in self._watches.items() if (files := watch.changes())}


def _watch_of(settings: GroupConfig, before: FileWatch | None) -> FileWatch:
    """Return a watch of a group's handler files. It replaces `before`, the group's previous watch.

    The configuration's check must have imported the handler in this process. Installed packages are not watched.
    """
    below, inside = set[Path](), set[Path]()
    for name in _top_modules(settings):
        folders, file = _places(sys.modules.get(name))
        below.update(folders)
        if not folders and file is not None:
            inside.add(file.parent)
            below.update(_packages_beside(file.parent))
    return FileWatch(filter(_is_edited, below), filter(_is_edited, inside), before=before)


def _top_modules(settings: GroupConfig) -> Iterator[str]:
    if settings.handler is None or settings.engine != "local":
        return
    for name in (settings.handler.plugin, *settings.handler.middleware):
        modules = (
            [name]
            if ":" in name
            else [one.module for one in installed_entry_points(HANDLER_ENTRY_POINTS).get(name, [])]
        )
        for module in modules:
            yield module.partition(":")[0].partition(".")[0]


def _places(module: ModuleType | None) -> tuple[list[Path], Path | None]:
    """Return the module's folders if it is a package, and the module's file. Both may be missing."""
    file = getattr(module, "__file__", None)
    return [Path(one) for one in getattr(module, "__path__", ())], None if file is None else Path(file)


def _packages_beside(folder: Path) -> Iterator[Path]:
    """Yield the folders of imported packages in `folder`. The handler does not use packages that are not imported."""
    for name, module in list(sys.modules.items()):
        if "." not in name:
            yield from (path for path in _places(module)[0] if path.parent.resolve() == folder.resolve())


def _is_edited(path: Path) -> bool:
    is_python = str(path.resolve()).startswith(os.path.join(sys.base_prefix, "lib"))
    return not is_python and not any(part in _LIBRARIES for part in path.resolve().parts)
