"""`rmqd run --reload`: groups in separate worker processes, which are replaced when the files of their handlers change.

The files of a handler are the files of its package, or a single module and the files next to it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Final

import structlog

from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.daemon.groups.group_engine import GroupChanges, HostView, UnknownGroupError
from rmqd.daemon.groups.group_reload import ConfigState, plan_changes
from rmqd.daemon.workers.worker_pool import WorkerPool
from rmqd.errors import ConfigError
from rmqd.plugins.entry_points import installed
from rmqd.plugins.handler_catalogue import HANDLER_ENTRY_POINTS
from rmqd.runtime.clock import Clock
from rmqd.runtime.figures import merged
from rmqd.runtime.files import POLL_SECONDS, FileWatch
from rmqd.runtime.own_threads import in_own_thread

_LIBRARIES: Final = ("site-packages", "dist-packages")


def watch_of(settings: GroupConfig, before: FileWatch | None = None) -> FileWatch:
    """Return the files to watch for a group, replacing `before`. Its code must be imported in this process, as the
    check does.

    Installed copies are skipped, because they are not edited.
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
    names = [settings.handler.plugin, *settings.handler.middleware]
    for name in names:
        modules = [name] if ":" in name else [one.module for one in installed(HANDLER_ENTRY_POINTS).get(name, [])]
        for module in modules:
            yield module.partition(":")[0].partition(".")[0]


def _places(module: ModuleType | None) -> tuple[list[Path], Path | None]:
    """Return the folders of a package, and the file of a module."""
    file = getattr(module, "__file__", None)
    return [Path(one) for one in getattr(module, "__path__", ())], None if file is None else Path(file)


def _packages_beside(folder: Path) -> Iterator[Path]:
    """Yield the imported packages in a folder. Other packages there are not used."""
    for name, module in list(sys.modules.items()):
        if "." not in name:
            yield from (path for path in _places(module)[0] if path.parent.resolve() == folder.resolve())


def _is_edited(path: Path) -> bool:
    is_python = str(path.resolve()).startswith(os.path.join(sys.base_prefix, "lib"))
    return not is_python and not any(part in _LIBRARIES for part in path.resolve().parts)


log = structlog.get_logger(__name__)


class ReloadingGroups:
    """A GroupHost: a pool of workers for each group. A change of a handler's files affects only its group."""

    def __init__(self, config: RootConfig, workers: int, clock: Clock) -> None:
        self._config = config
        self._workers = workers
        self._clock = clock
        self._pools = {name: self._pool(config, name) for name in config.groups}
        self._watches = {name: watch_of(config.groups[name]) for name in config.groups}
        self._held: set[str] = set()  # groups whose new code cannot be imported
        self._paused: set[str] = set()  # held groups that are paused only for this reason, not by an operator
        self._changing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run all groups until `stop`. Raises ConfigError if one cannot be built at the start."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for name in self._pools:
                self._launch(name)
            watching = tasks.create_task(self._watch(), name="watch of files")
            await self._stopping.wait()
            watching.cancel()

    async def started(self, patience_seconds: float) -> None:
        """Wait until every group is ready, at most `patience_seconds` plus the start of a process."""
        await asyncio.gather(*(pool.started(patience_seconds) for pool in self._pools.values()))

    async def view(self, *, with_queues: bool = True) -> HostView:
        """Return all workers of all groups, with unique numbers."""
        views = await asyncio.gather(*(pool.view(with_queues=with_queues) for pool in self._pools.values()))
        none = HostView((), workers={"running": 0, "restarting": 0})
        return reduce(merged, (_numbered(one, index * self._workers) for index, one in enumerate(views)), none)

    async def pause(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        await self._pool_of(group).pause(group, scope)
        if scope == WHOLE_GROUP:
            self._paused.discard(group)

    async def resume(self, group: str, scope: PauseScope = WHOLE_GROUP) -> None:
        await self._pool_of(group).resume(group, scope)
        if scope == WHOLE_GROUP:
            self._paused.discard(group)

    async def restart(self, group: str) -> None:
        async with self._changing:
            await self._pool_of(group).renew(resumed=group if group in self._paused else "")
            self._held.discard(group)
            self._paused.discard(group)

    async def apply(self, config: RootConfig) -> GroupChanges:
        """Apply a configuration. Raises ConfigError, and changes nothing, if a new worker cannot build a group.

        A group whose code cannot be imported does not cause a refusal. It gets the new configuration with its next
        code.
        """
        async with self._changing:
            self._refuse_as_it_ends()
            changes = plan_changes(ConfigState.of(self._config), ConfigState.of(config))
            # before their workers import: the next poll finds any file that is saved from now on
            watches = {
                name: watch_of(config.groups[name], self._watches.get(name))
                for name in (*changes.started, *changes.restarted)
            }
            pools = {name: self._pools.get(name) or self._pool(config, name) for name in config.groups}
            held = self._held & pools.keys()
            await _check(config, {name: pool for name, pool in pools.items() if name not in held})
            self._refuse_as_it_ends()
            for name in changes.stopped:
                self._pools.pop(name).stop()
                self._watches.pop(name)
            self._held, self._paused = held, self._paused & held
            self._config, self._pools = config, pools
            self._watches |= watches
            for name in changes.started:
                self._launch(name, is_checked=True)
            kept = [name for name in pools if name not in held and name not in changes.started]
            await asyncio.gather(*(pools[name].take_over(_alone(config, name)) for name in kept))
            for name in held:
                pools[name].keep(_alone(config, name))
                await self._restart_group(name, [])
            return changes

    def stop(self) -> None:
        self._stopping.set()
        for pool in self._pools.values():
            pool.stop()

    def force_stop(self) -> None:
        self._stopping.set()
        for pool in self._pools.values():
            pool.force_stop()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def longest_drain_seconds(self) -> float:
        return max((pool.longest_drain_seconds for pool in self._pools.values()), default=0.0)

    def _refuse_as_it_ends(self) -> None:
        if self.stopping:
            raise ConfigError(["the daemon is stopping and cannot apply a new configuration"])

    def _pool(self, config: RootConfig, name: str) -> WorkerPool:
        return WorkerPool(_alone(config, name), self._workers, self._clock)

    def _pool_of(self, group: str) -> WorkerPool:
        if group not in self._pools:
            raise UnknownGroupError(group, list(self._pools))
        return self._pools[group]

    def _launch(self, name: str, *, is_checked: bool = False) -> None:
        assert self._tasks is not None
        self._tasks.create_task(self._pools[name].run(is_checked=is_checked), name=f"workers of {name}")

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(POLL_SECONDS)
            async with self._changing:
                changed = await in_own_thread(lambda: _changed(self._watches))
                await asyncio.gather(*(self._restart_group(name, files) for name, files in changed.items()))

    async def _restart_group(self, name: str, files: list[Path]) -> None:
        """Restart a group with its new code. While the code cannot be imported, the group is paused."""
        pool = self._pools[name]
        told = [str(file) for file in files]
        try:
            await pool.renew(resumed=name if name in self._paused else "")
        except ConfigError as error:
            if name not in self._held:
                self._held.add(name)
                if not pool.is_paused(name):
                    self._paused.add(name)
                    await pool.pause(name)
            problems = [str(problem) for problem in error.problems]
            log.warning("handler.reload_refused", group=name, files=told, problems=problems, action="pause")
            return
        self._held.discard(name)
        self._paused.discard(name)
        log.info("handler.reloaded", group=name, files=told)


async def _check(config: RootConfig, pools: dict[str, WorkerPool]) -> None:
    """Check each pool's part. Raises ConfigError with all problems."""
    answers = await asyncio.gather(
        *(pool.check(_alone(config, name)) for name, pool in pools.items()), return_exceptions=True
    )
    problems: list[object] = []
    for answer in answers:
        if isinstance(answer, ConfigError):
            problems += answer.problems
        elif answer is not None:
            raise answer
    if problems:
        raise ConfigError(problems)


def _alone(config: RootConfig, name: str) -> RootConfig:
    return config.model_copy(update={"groups": {name: config.groups[name]}})


def _numbered(view: HostView, offset: int) -> HostView:
    """Return the view with other numbers for its workers."""
    return replace(
        view,
        processes=tuple(replace(one, worker=(one.worker or 0) + offset) for one in view.processes),
        past=tuple(replace(one, worker=(one.worker or 0) + offset) for one in view.past),
        answering={number + offset: answers for number, answers in view.answering.items()},
    )


def _changed(watches: dict[str, FileWatch]) -> dict[str, list[Path]]:
    return {name: files for name, watch in list(watches.items()) if (files := watch.changes())}
