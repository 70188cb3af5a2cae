"""Modules of rmqd that are imported when they are first used.

A command's module needs the client, the configuration or Spark when its command runs, not for its help:

    with import_lazily():
        from rmqd.operate.queries import group_queries

A name inside a module (`from module import name`) is read at once, so such an import would not be lazy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from threading import RLock
from types import ModuleType
from typing import Any, Final


class LazyFinder(MetaPathFinder):
    """Finds rmqd's modules, and delays a module's code until one of its names is read. Packages are not delayed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname.startswith("rmqd.") else None
        if spec is not None and spec.origin is not None and spec.submodule_search_locations is None:
            spec.loader = DelayingLoader(fullname, spec.origin)
        return spec


class DelayingLoader(SourceFileLoader):
    def __init__(self, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self.lock = RLock()  # other threads wait until the code has run
        self.is_running = False

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = LazyModule

    def execute(self, module: ModuleType) -> None:
        """Run the module's code. The module may import structlog, so `structlog_without_rich` is imported first."""
        from rmqd.runtime import structlog_without_rich  # noqa: F401

        super().exec_module(module)


class LazyModule(ModuleType):
    """A module that runs its code when a name is read that the module does not have yet.

    importlib's LazyLoader also runs the code for `__file__`. Some libraries (Hypothesis, `inspect.getmodule`) read
    `__file__` of every loaded module, and would then fail at a module whose requirements are not installed.
    """

    def __getattr__(self, name: str) -> Any:
        loader = self.__loader__
        if name.startswith("__") or not isinstance(loader, DelayingLoader):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with loader.lock:
            if loader.is_running:  # the module's own code tests whether it has this name
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            if self.__class__ is LazyModule:  # else another thread has just run the code
                loader.is_running = True
                try:
                    loader.execute(self)
                finally:
                    loader.is_running = False
                self.__class__ = ModuleType  # type: ignore[assignment]
        return getattr(self, name)


_FINDER: Final = LazyFinder()


@contextmanager
def import_lazily() -> Iterator[None]:
    """Delay the import of rmqd's modules in the block until their first use. Only in the main thread, at the start."""
    sys.meta_path.insert(0, _FINDER)
    try:
        yield
    finally:
        sys.meta_path.remove(_FINDER)
