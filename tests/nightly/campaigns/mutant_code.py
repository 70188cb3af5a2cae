"""How a process gets a mutant: an existing function gets new code, or a module is imported from another source."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from tests.nightly.campaigns.mutations import Mutant


def live_code(mutant: Mutant) -> tuple[FunctionType, CodeType] | None:
    """Return the faulty function and its faulty code; None if the code cannot be replaced."""
    module = importlib.import_module(mutant.module)  # some modules are imported lazily
    assert module.__file__ is not None
    changed = _codes(compile(mutant.source, module.__file__, "exec", dont_inherit=True))[mutant.where]
    live = [function for function in _functions(module) if function.__code__.co_qualname == mutant.where]
    if not live or len(changed) != len(live):
        return None
    live.sort(key=lambda function: function.__code__.co_firstlineno)
    differing = [(old, new) for old, new in zip(live, changed, strict=True) if not _is_same(old.__code__, new)]
    if len(differing) != 1:
        return None
    function, code = differing[0]
    return (function, code) if function.__code__.co_freevars == code.co_freevars else None


def _is_same(one: CodeType, other: CodeType) -> bool:
    return one == other and one.co_consts == other.co_consts


def _codes(code: CodeType) -> dict[str, list[CodeType]]:
    found: dict[str, list[CodeType]] = {}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_flags & 0x2:  # a function's, not a class body's: CO_NEWLOCALS
                found.setdefault(const.co_qualname, []).append(const)
            else:
                for name, codes in _codes(const).items():
                    found.setdefault(name, []).extend(codes)
    return found


def _functions(module: ModuleType) -> list[FunctionType]:
    """Return all functions and methods that a module defines."""
    found: dict[int, FunctionType] = {}
    waiting: list[object] = list(vars(module).values())
    seen = set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            if value.__code__.co_filename == module.__file__:
                found[id(value)] = value
            waiting.append(getattr(value, "__wrapped__", None))
        elif isinstance(value, type) and value.__module__ == module.__name__:
            waiting += vars(value).values()
        elif isinstance(value, property):
            waiting += [value.fget, value.fset, value.fdel]
        elif isinstance(value, staticmethod | classmethod):
            waiting.append(value.__func__)
    return list(found.values())


class Instead(importlib.abc.MetaPathFinder):
    """Imports a module from another source."""

    def __init__(self, module: str, source: Path) -> None:
        self._module = module
        self._source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, self._source)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: Path) -> None:
        super().__init__(fullname, path)
        self._text = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text.read_text(), self.path, "exec", dont_inherit=True)
