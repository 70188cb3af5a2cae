"""Reads and restores a handler's memory in this process: attributes, closure variables, and module variables.

Objects are inspected if the handler's author wrote their class, together with the containers in them. Objects of
libraries, such as a connection, are neither read nor restored. States are compared as values, without parts that vary
in every run.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import inspect
import re
import sys
import types
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from typing import Any, Final

from rmqd.runtime.plain_text import text_of

_LIBRARY_FOLDERS: Final = ("/site-packages/", "/dist-packages/")
_VARIABLES: Final = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"}
_THROUGH: Final = "rmqd.handler_api.typed"  # objects of this module wrap the author's function


class ReachableObjects:
    """All objects that `roots`, such as a handler's functions, refer to directly or indirectly at construction."""

    def __init__(self, roots: Iterable[object], package: str = "") -> None:
        """`package` is the handler's top-level package. Its author wrote it, even if it is in site-packages."""
        self._package = package
        self._seen: dict[int, object] = {}  # keeps visited objects alive, so that ids stay unique
        self._puts_back: list[Callable[[], object]] = []
        self.places: dict[str, Callable[[], object]] = {}
        """The author's variables by name. Each function returns the variable's current value."""
        for root in roots:
            self._visit(root)

    def restore(self) -> None:
        """Restore all inspected variables, attributes and containers to their content at construction."""
        for put_back in self._puts_back:
            put_back()

    def is_authors_object(self, value: object) -> bool:
        """Return whether the handler's author wrote the class of an object."""
        return self.is_authors_module(type(value).__module__) and not isinstance(value, type | types.ModuleType)

    def is_authors_module(self, module_name: str | None) -> bool:
        """Return whether the handler's author wrote a module. Modules of rmqd, Python and libraries are excluded."""
        top = (module_name or "").partition(".")[0]
        if top == self._package and top:
            return True
        if not top or top in ("rmqd", "builtins") or top in sys.stdlib_module_names - {"__main__"}:
            return False
        file = getattr(sys.modules.get(module_name or ""), "__file__", None) or ""
        return not any(folder in file.replace("\\", "/") for folder in _LIBRARY_FOLDERS)

    def values(self) -> dict[str, object]:
        """Return the current values of the author's variables, by name."""
        return {name: read() for name, read in self.places.items()}

    def _visit(self, value: object) -> None:
        if value is None or isinstance(value, str | bytes | int | float) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, types.MethodType):
            self._visit(value.__func__)
            instance = value.__self__
            if self.is_authors_object(instance) and id(instance) not in self._seen:
                self.places["self"] = lambda: instance
            self._visit(instance)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, functools.partial):
            for one in (value.func, *value.args, *value.keywords.values()):
                self._visit(one)
        elif isinstance(value, list | dict | set | deque | bytearray):
            self._keep_container(value)
        elif isinstance(value, tuple | frozenset):
            for one in value:
                self._visit(one)
        elif isinstance(value, type):
            if self.is_authors_module(value.__module__):
                self._visit_class(value)
        elif self.is_authors_object(value) or type(value).__module__.startswith(_THROUGH):
            self._visit_instance(value)

    def _visit_function(self, function: types.FunctionType) -> None:
        if inspect.unwrap(function) is not function:
            self._visit(inspect.unwrap(function))
        is_own = self.is_authors_module(function.__module__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # the closure's variable has no value yet
                continue
            self._puts_back.append(functools.partial(setattr, cell, "cell_contents", content))
            if is_own:
                self._name(name, content, functools.partial(getattr, cell, "cell_contents"))
            self._visit(content)
        if not is_own:
            return
        for name in sorted(_names_in(function.__code__) & function.__globals__.keys()):
            value = function.__globals__[name]
            self._puts_back.append(functools.partial(function.__globals__.__setitem__, name, value))
            self._name(name, value, functools.partial(function.__globals__.get, name))
            self._visit(value)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            if isinstance(default, list | dict | set | deque):
                self._name(f"{function.__name__}'s default argument", default, functools.partial(_same, default))
            self._visit(default)

    def _visit_class(self, kind: type) -> None:
        for name, value in list(vars(kind).items()):
            if name.startswith("__") or _is_code(value):
                if isinstance(value, types.FunctionType):
                    self._visit(value)
                continue
            self._puts_back.append(functools.partial(setattr, kind, name, value))
            self._name(f"{kind.__name__}.{name}", value, functools.partial(getattr, kind, name))
            self._visit(value)

    def _visit_instance(self, instance: object) -> None:
        if type(instance).__module__.startswith(_THROUGH):
            for one in _attributes(instance).values():
                self._visit(one)
            return
        self._visit(type(instance))
        kept = _attributes(instance)
        self._puts_back.append(functools.partial(_set_attributes, instance, kept))
        for one in kept.values():
            self._visit(one)

    def _keep_container(self, container: Any) -> None:
        if isinstance(container, dict):
            items = dict(container)
            self._puts_back.append(functools.partial(_refill, container, container.update, items))
            inner: Iterator[object] = iter(items.values())
        else:
            ones = list(container)
            fill = container.update if isinstance(container, set) else container.extend
            self._puts_back.append(functools.partial(_refill, container, fill, ones))
            inner = iter(ones)
        for one in inner:
            self._visit(one)

    def _name(self, name: str, value: object, read: Callable[[], object]) -> None:
        if not _is_code(value):
            self.places.setdefault(name, read)


def _attributes(instance: object) -> dict[str, object]:
    """Return the attributes of an object, from its `__dict__` and its slots."""
    found = dict(getattr(instance, "__dict__", {}))
    for kind in type(instance).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if isinstance(member, types.MemberDescriptorType) and hasattr(instance, name):
                found[name] = getattr(instance, name)
    return found


def _set_attributes(instance: object, attributes: dict[str, object]) -> None:
    for name in _attributes(instance).keys() - attributes.keys():
        object.__delattr__(instance, name)
    for name, value in attributes.items():
        object.__setattr__(instance, name, value)  # bypasses frozen dataclasses and models


def _is_code(value: object) -> bool:
    kinds = (types.ModuleType, type, staticmethod, classmethod, property, functools.partial, types.MemberDescriptorType)
    return isinstance(value, kinds) or inspect.isroutine(value) or type(value).__module__ == "typing"


def _names_in(code: types.CodeType) -> set[str]:
    """Return the names of outer variables that a function uses, including its inner functions."""
    names = {one.argval for one in dis.get_instructions(code) if one.opname in _VARIABLES}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


def _refill(container: Any, fill: Callable[[Any], object], content: object) -> None:
    container.clear()
    fill(content)


def _same(value: object) -> object:
    return value


Path = tuple[object, ...]
DIFFERS_EACH_TIME: Final = "(differs each time)"
_ANY: Final = "*"  # in a path: all elements of a list, because a part that varies in one element is ignored in all
# The last step of a path to a dict whose keys vary in every run. Its keys are ignored, and its values become a list.
_KEYS: Final = "(keys)"
_PLAIN: Final = (bool, int, float, str, bytes, type(None))
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_DEEPEST: Final = 30
IncludesAttributes = Callable[[object], bool]
"""A function that returns whether the attributes of an object are part of the state."""


def plain_state(
    value: object, looked_into: IncludesAttributes, depth: int = 0, *, reads_iterators: bool = False
) -> Any:
    """Convert a state to dicts, lists, tuples and plain values.

    A dataclass, or an object that `looked_into` accepts, becomes a dict of its attributes. Other objects become text.
    With `reads_iterators`, iterators that are not attributes, such as a cursor, become lists of their rows. Other
    iterators belong to the handler and may have no end: they are not read, and their position is not compared.
    """
    if type(value) in _PLAIN or depth > _DEEPEST:
        return value if type(value) in _PLAIN else type(value).__name__
    if isinstance(value, enum.Enum):
        return str(value)

    def inner(one: object, *, reads_iterators: bool = reads_iterators) -> Any:
        return plain_state(one, looked_into, depth + 1, reads_iterators=reads_iterators)

    if isinstance(value, Mapping):
        return {_key(inner(key)): inner(one) for key, one in value.items()}
    if isinstance(value, Set):
        return sorted((inner(one) for one in value), key=repr)
    if isinstance(value, str | bytes | bytearray | int | float):
        return bytes(value) if isinstance(value, bytearray) else text_of(value)
    if isinstance(value, tuple):
        return tuple(inner(one) for one in value)
    if isinstance(value, Collection) or (reads_iterators and isinstance(value, Iterator)):
        return [inner(one) for one in value]  # for example a deque, a list
    if dataclasses.is_dataclass(value) or looked_into(value):
        return {name: inner(one, reads_iterators=False) for name, one in _attributes(value).items()}
    text = text_of(value, repr)
    return f"<{type(value).__name__}>" if isinstance(value, Iterator) or _ADDRESS.search(text) else text


def differing_paths(one: Any, other: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths at which the states of two equal runs differ, for example because of a time or a random id."""
    if one == other:
        return
    if isinstance(one, dict) and isinstance(other, dict) and len(one) == len(other):
        if one.keys() == other.keys():
            for key in one:
                yield from differing_paths(one[key], other[key], (*path, key))
        else:
            yield (*path, _KEYS)
            for pair in zip(sorted(one.values(), key=repr), sorted(other.values(), key=repr), strict=True):
                yield from differing_paths(*pair, (*path, _ANY))
    elif isinstance(one, list | tuple) and type(one) is type(other) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differing_paths(*pair, (*path, _ANY if isinstance(one, list) else index))
    else:
        yield path


def comparable_state(state: Any, leave_out: Collection[Path], path: Path = ()) -> Any:
    """Return a state for comparison, without the paths `leave_out`. Lists are sorted, because queues have no order."""
    if path in leave_out:
        return DIFFERS_EACH_TIME
    if isinstance(state, dict):
        if (*path, _KEYS) in leave_out:
            state = list(state.values())
        else:
            return {key: comparable_state(one, leave_out, (*path, key)) for key, one in state.items()}
    if isinstance(state, tuple):
        return tuple(comparable_state(one, leave_out, (*path, index)) for index, one in enumerate(state))
    if isinstance(state, list):
        return sorted((comparable_state(one, leave_out, (*path, _ANY)) for one in state), key=repr)
    return state


def differences(expected: Any, found: Any, name: str = "") -> Iterator[str]:
    """Yield the differences between two states from `settled`, a line for each part."""
    if expected == found:
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*expected, *found]):
            inner = f"{name}.{key}" if name and str(key).isidentifier() else f"{name}[{key!r}]" if name else str(key)
            if key not in found:
                yield f"{inner}: missing, expected {state_text(expected[key])}"
            elif key not in expected:
                yield f"{inner}: {state_text(found[key])}, expected nothing"
            else:
                yield from differences(expected[key], found[key], inner)
        return
    if isinstance(expected, list) and isinstance(found, list):
        too_few, too_many = _surplus(expected, found), _surplus(found, expected)
        place = f"{name}: " if name else ""
        yield from (f"{place}{text} is missing" for text in too_few)
        yield from (f"{place}{text} is unexpected" for text in too_many)
        return
    yield f"{name or 'the state'}: {state_text(found)}, expected {state_text(expected)}"


def state_text(state: Any, most: int = 120) -> str:
    """Return a state as text of at most `most` characters."""
    text = repr(state)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _surplus(some: list[Any], others: list[Any]) -> Iterator[str]:
    return (Counter(map(state_text, some)) - Counter(map(state_text, others))).elements()


def _key(key: Any) -> Any:
    return key if isinstance(key, _PLAIN) else repr(key)
