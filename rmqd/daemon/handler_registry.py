"""Finds handlers: by their name among the entry points `rmqd.handlers`, or as `module:attribute`.

Only what a configuration names is imported, and what goes wrong on the way is a problem of that configuration.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path as FilePath
from typing import Any, Final

from rmqd.daemon.config_problems import Problem, unknown
from rmqd.daemon.config_types import Substituted
from rmqd.daemon.entry_points import IMPORTABLE, EntryPointError, import_object, installed, not_installed, why
from rmqd.daemon.group_config import GroupConfig, HandlerConfig
from rmqd.daemon.handler_plugin import Fault, HandlerFaultError, HandlerPlugin
from rmqd.errors import ConfigError
from rmqd.handler import LoadedHandler

ENTRY_POINT_GROUP: Final = "rmqd.handlers"

_MODULE_ATTRIBUTE: Final = re.compile(r"([\w.]+):([\w.]+)")


def load_handler(group: str, settings: GroupConfig, given: object = None) -> LoadedHandler:
    """The handler of a group, made with its options and not started. Raises ConfigError with what is wrong.

    `given` is a plugin's object that is used in place of what the name leads to.
    """
    assert settings.handler is not None
    try:
        plugin, options = _plugin_and_options(settings.handler, given)
        return plugin.load(options)
    except HandlerFaultError as error:
        raise ConfigError(list[object](_located(group, settings, error))) from error


def handler_problems(group: str, settings: GroupConfig) -> list[Problem]:
    """What is wrong with a group's plugin and its options; the plugin is imported, and nothing of it runs."""
    if settings.handler is None:
        return []
    try:
        _plugin_and_options(settings.handler)
    except HandlerFaultError as error:
        return list(_located(group, settings, error))
    return []


def find_plugin(name: str) -> HandlerPlugin:
    """Import the plugin of this name, or `module:attribute`. Raises HandlerFaultError."""
    if ":" in name:
        return HandlerPlugin.of(name, _attribute(name))
    entry_points = installed(ENTRY_POINT_GROUP)
    if name not in entry_points:
        raise _plugin_fault(str(not_installed("handler", name, entry_points, "or module:attribute")))
    return plugin_of(entry_points[name])


def plugin_of(entry_points: list[EntryPoint]) -> HandlerPlugin:
    """Import the plugin behind the entry points of one name. Raises HandlerFaultError."""
    try:
        target = import_object("handler", entry_points, otherwise="module:attribute")
    except EntryPointError as error:
        raise _plugin_fault(str(error)) from error.__cause__
    return HandlerPlugin.of(entry_points[0].name, target)


def _plugin_and_options(handler: HandlerConfig, given: object = None) -> tuple[HandlerPlugin, Any]:
    plugin = find_plugin(handler.plugin) if given is None else HandlerPlugin.of(handler.plugin, given)
    return plugin, plugin.validated(_plain(handler.options))


def _attribute(name: str) -> object:
    match = _MODULE_ATTRIBUTE.fullmatch(name)
    if match is None:
        raise _plugin_fault(
            f"{name!r} is not understood; accepted: the name of an installed handler, or module:attribute"
        )
    module_name, attributes = match.groups()
    try:
        target: Any = _import(module_name)
    except (Exception, SystemExit) as error:
        raise _plugin_fault(f"the module {module_name} cannot be imported: {why(error)}; {IMPORTABLE}") from error
    for attribute in attributes.split("."):
        if not hasattr(target, attribute):
            known = [one for one in dir(target) if not one.startswith("_")]
            raise _plugin_fault(f"the module {module_name} has no {attributes}: {unknown('name', attribute, known)}")
        target = getattr(target, attribute)
    return target


def _import(module_name: str) -> object:
    """Import a module; as with other servers, one in the working directory need not be installed."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        here = str(FilePath.cwd())
        if error.name != module_name.partition(".")[0] or here in sys.path:
            raise
        # At the end, so that nothing that is installed can be shadowed from here.
        sys.path.append(here)
        importlib.invalidate_caches()
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError:
            sys.path.remove(here)
            raise


def _plugin_fault(message: str) -> HandlerFaultError:
    return HandlerFaultError(Fault(("plugin",), message))


def _located(group: str, settings: GroupConfig, error: HandlerFaultError) -> Iterator[Problem]:
    for fault in error.faults:
        yield settings.problem(group, ("handler", *fault.path), fault.message, at_key=fault.at_key)


def _plain(value: Any) -> Any:
    """Options as a handler expects them: text that was substituted is ordinary text to it."""
    if isinstance(value, Substituted):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value
