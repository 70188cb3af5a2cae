"""Finds the object of a plugin by an entry point's name, or as `module:attribute`.

Only plugins that a configuration names are imported. An error becomes a problem of that configuration.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path as FilePath
from typing import Any, Final

from rmqd.config.model.group import GroupConfig
from rmqd.config.problems import ConfigProblem, Path, unknown
from rmqd.plugins.entry_points import IMPORTABLE, EntryPointError, import_object, installed, not_installed, why
from rmqd.plugins.form import PluginFaultError, plugin_fault

_MODULE_ATTRIBUTE: Final = re.compile(r"([\w.]+):([\w.]+)")


def find_object(kind: str, entry_point_group: str, name: str) -> object:
    """Import the object of an entry point's name, or of `module:attribute`. Raises PluginFaultError."""
    if ":" in name:
        return object_at(name, f"the name of an installed {kind}, or module:attribute")
    entry_points = installed(entry_point_group)
    if name not in entry_points:
        raise plugin_fault(str(not_installed(kind, name, entry_points, "module:attribute")))
    return loaded(kind, entry_points[name])


def loaded(kind: str, entry_points: list[EntryPoint]) -> object:
    """Import the object of a name's entry points. Raises PluginFaultError."""
    try:
        return import_object(kind, entry_points, otherwise="module:attribute")
    except EntryPointError as error:
        raise plugin_fault(str(error)) from error.__cause__


def located(group: str, settings: GroupConfig, key: Path, error: PluginFaultError) -> Iterator[ConfigProblem]:
    """Yield the faults of a plugin as problems of the group whose `key` names it."""
    for fault in error.faults:
        yield settings.problem(group, (*key, *fault.path), fault.message, at_key=fault.at_key)


def object_at(name: str, accepted: str = "module:attribute") -> object:
    """Import the object of `module:attribute`. Raises PluginFaultError."""
    match = _MODULE_ATTRIBUTE.fullmatch(name)
    if match is None:
        raise plugin_fault(f"{name!r} is not valid; expected {accepted}")
    module_name, attributes = match.groups()
    try:
        target: Any = _import(module_name)
    except (Exception, SystemExit) as error:
        raise plugin_fault(f"the module {module_name} cannot be imported: {why(error)}; {IMPORTABLE}") from error
    for attribute in attributes.split("."):
        if not hasattr(target, attribute):
            known = [one for one in dir(target) if not one.startswith("_")]
            raise plugin_fault(f"the module {module_name} has no {attributes}: {unknown('name', attribute, known)}")
        target = getattr(target, attribute)
    return target


def _import(module_name: str) -> object:
    """Import a module. A module in the working directory need not be installed, as with other servers."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        here = str(FilePath.cwd())
        if error.name != module_name.partition(".")[0] or here in sys.path:
            raise
        # at the end of the path, so that a module here cannot shadow an installed one
        sys.path.append(here)
        importlib.invalidate_caches()
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError:
            sys.path.remove(here)
            raise
