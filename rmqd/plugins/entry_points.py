"""Imports the object of a plugin, which is named by an entry point of an installed distribution or `module:attribute`.

Only plugins that a configuration names are imported. An error becomes a problem of the configuration. The other modules
of this package check whether the object is a valid handler, strategy, hook and so on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final

from rmqd.config.model.group_model import GroupConfig
from rmqd.config.problems import most_similar_name, unknown
from rmqd.errors import ConfigError
from rmqd.plugins.option_form import PluginFaultError, plugin_fault
from rmqd.runtime.plain_text import describe

IMPORTABLE: Final = "expected a module that can be imported"

_OWN_FOLDER: Final = __file__.rpartition("/")[0]
_imported: Final[dict[str, tuple[int, int] | None]] = {}
"""For each plugin module: the modification time and size of its file at the import; None without a file."""


@functools.cache
def installed_entry_points(group: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points of an entry point group by name. Several distributions may use the same name.

    All distributions are searched once, and the result is kept until `forget_entry_points`.
    """
    found: dict[str, list[EntryPoint]] = {}
    for entry_point in sorted(_all_installed().select(group=group)):
        found.setdefault(entry_point.name, []).append(entry_point)
    return found


def forget_entry_points() -> None:
    """Discard the known entry points. Called before each load, because new plugins may have been installed."""
    _all_installed.cache_clear()
    installed_entry_points.cache_clear()


@functools.cache
def _all_installed() -> Any:
    return importlib.metadata.entry_points()


def not_installed_error(kind: str, name: str, known: Iterable[str], also: str = "") -> PluginFaultError:
    """Return the error for an unknown plugin name, with a similar name, all known names, and `also`."""
    names = list(known)
    guess = most_similar_name(name, names) or (also and _meant(name))
    meant = f"; did you mean {guess}?" if guess else ""
    also = f"or {also}" if also and names else also
    accepted = ", ".join(filter(None, [*names, also])) or "none"
    return plugin_fault(f"no {kind} {name!r} is installed{meant}; expected {accepted}")


def import_object(kind: str, entry_points: list[EntryPoint], otherwise: str = "module:attribute") -> object:
    """Import the object of the only entry point in the list. Raises PluginFaultError if the import fails.

    Also raises it for several entry points. The error then proposes to write `otherwise` in place of the name.
    """
    entry_point = entry_points[0]
    if len(entry_points) > 1:
        owners = ", ".join(f"{one.dist.name if one.dist else 'unknown'} ({one.value})" for one in entry_points)
        raise plugin_fault(f"several distributions have a {kind} of this name: {owners}; expected {otherwise}")
    try:
        target: object = entry_point.load()
    except (Exception, SystemExit) as error:  # importing runs the plugin's code, which may raise anything
        owner = f" of {entry_point.dist.name}" if entry_point.dist else ""
        raise plugin_fault(f"{entry_point.value}{owner} cannot be imported: {why(error)}; {IMPORTABLE}") from error
    _refuse_method(entry_point.name, entry_point.module, entry_point.attr or "")  # attr is None for a module
    return target


def why(error: BaseException) -> str:
    """Return a plugin's exception as text, with the file and line that raised it, unless this package raised it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith("<frozen ")  # such as os.environ's
    ]
    text = describe(error)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    if not frames or frames[-1].filename.startswith(_OWN_FOLDER):
        return text
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})"


_MODULE_ATTRIBUTE: Final = re.compile(r"([\w.]+):([\w.]+)")


def _meant(name: str) -> str | None:
    """Return `mailer:handle` for `mailer.handle`, `./mailer.py:handle` or `mailer::handle()`, or None."""
    guess = re.sub(r"^\./|\.py(?=:|$)|\(\)$|(?<=:)\s+", "", name).replace("/", ".").replace("::", ":")
    if ":" not in guess and "/" not in name:  # the path of a file names no attribute
        guess = ":".join(guess.rpartition(".")[::2])
    return guess if guess != name and guess[:1] != "." and _MODULE_ATTRIBUTE.fullmatch(guess) else None


def find_object(kind: str, entry_point_group: str, name: str, *other_words: str) -> object:
    """Import the object of a plugin named by an entry point or `module:attribute`. Raises PluginFaultError.

    The error for an unknown name also lists `other_words`, names that the caller accepts without an entry point.
    """
    if ":" in name:
        return import_attribute(name, f"the name of an installed {kind}, or module:attribute")
    entry_points = installed_entry_points(entry_point_group)
    if name not in entry_points:
        raise not_installed_error(kind, name, [*other_words, *entry_points], "module:attribute")
    return import_object(kind, entry_points[name])


@contextlib.contextmanager
def faults_located(group: str, settings: GroupConfig, *key: str) -> Iterator[None]:
    """Convert a PluginFaultError to a ConfigError of the group; `key` is the path of the key that names the plugin."""
    try:
        yield
    except PluginFaultError as error:
        problems = [settings.problem(group, (*key, *one.path), one.message, at_key=one.at_key) for one in error.faults]
        raise ConfigError(list[object](problems)) from error


def import_attribute(name: str, accepted: str = "module:attribute") -> object:
    """Import the object with the name `module:attribute`. Raises PluginFaultError; `accepted` is the expected form."""
    match = _MODULE_ATTRIBUTE.fullmatch(name)
    hint = f"; did you mean {guess}?" if (guess := _meant(name)) else ""
    if match is None:
        raise plugin_fault(f"{name!r} is not valid{hint}; expected {accepted}")
    module_name, attributes = match.groups()
    is_new = module_name not in sys.modules
    try:
        target: Any = _import(module_name)
    except (Exception, SystemExit) as error:
        step = hint.removeprefix("; ") or IMPORTABLE
        if not hint and isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            step = f"expected a module that is installed, in PYTHONPATH, or in {Path.cwd()}"
        raise plugin_fault(f"the module {module_name} cannot be imported: {why(error)}; {step}") from error
    if is_new:
        _imported[module_name] = _state(_file(module_name))
    for attribute in attributes.split("."):
        if not hasattr(target, attribute):
            said = unknown("name", attribute, _own_names(target, module_name))
            beside, loaded = Path(f"{module_name}.py").absolute(), _file(module_name)
            if beside.is_file() and not (loaded.is_file() and beside.samefile(loaded)):
                said = f"another module of this name hides {beside}; rename this file"
            raise plugin_fault(f"the module {module_name} has no {attributes}: {said}{_changed(module_name)}")
        target = getattr(target, attribute)
    _refuse_method(name, module_name, attributes)
    return target


def _refuse_method(name: str, module_name: str, attributes: str) -> None:
    """Raise PluginFaultError for a method of a class, even if decorated, because it would get a batch as `self`."""
    *owner, own_name = attributes.split(".")
    holder = functools.reduce(getattr, owner, sys.modules[module_name])
    kind = type(inspect.getattr_static(holder, own_name, None))
    if inspect.isclass(holder) and kind not in (staticmethod, classmethod) and hasattr(kind, "__get__"):
        raise plugin_fault(f"{name} is a method; name the class: {module_name}:{'.'.join(owner)}")


def _own_names(target: object, module_name: str) -> list[str]:
    """Return the names in `target` of functions and classes from the module's package; all public names if none."""
    names = [name for name in dir(target) if not name.startswith("_")]
    package = module_name.partition(".")[0]
    own = []
    for name in names:
        with contextlib.suppress(Exception):  # reading an attribute may import a module whose extra is not installed
            value = getattr(target, name)
            if callable(value) and str(getattr(value, "__module__", "")).partition(".")[0] == package:
                own.append(name)
    return own or names


def _changed(module_name: str) -> str:
    """Return a hint if a module's file has changed since the import; empty otherwise."""
    path = _file(module_name)
    if (now := _state(path)) is None or now == _imported.get(module_name, now):
        return ""
    return f"; {path} has changed since it was imported: restart the process to use new names"


def _file(module_name: str) -> Path:
    return Path(getattr(sys.modules.get(module_name), "__file__", None) or "")


def _state(path: Path) -> tuple[int, int] | None:
    """Return a file's modification time and size, or None. Two changes within milliseconds may have the same time."""
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None


def _import(module_name: str) -> object:
    """Import a module. It may be in the working directory, as with other Python servers."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if error.name != module_name.partition(".")[0] or here in sys.path:
            raise
        # at the end of the path, so that a module in the working directory cannot shadow an installed module
        sys.path.append(here)
        importlib.invalidate_caches()
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError:
            sys.path.remove(here)
            raise
