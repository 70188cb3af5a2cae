"""Finds handlers: by their name among the entry points `rmqd.handlers`, or as `module:attribute`.

Only what a configuration names is imported, and what goes wrong on the way is a problem of that configuration.
"""

from __future__ import annotations

from typing import Any, Final

from rmqd.config.model.group import GroupConfig, HandlerConfig
from rmqd.config.problems import ConfigProblem
from rmqd.errors import ConfigError
from rmqd.handler import LoadedHandler
from rmqd.plugins.form import PluginFaultError
from rmqd.plugins.handler_plugin import HandlerPlugin
from rmqd.plugins.lookup import find_object, located, plain

ENTRY_POINT_GROUP: Final = "rmqd.handlers"


def load_handler(group: str, settings: GroupConfig, given: object = None) -> LoadedHandler:
    """The handler of a group, made with its options and not started. Raises ConfigError with what is wrong.

    `given` is a plugin's object that is used in place of what the name leads to.
    """
    assert settings.handler is not None
    try:
        plugin, options = _plugin_and_options(settings.handler, given)
        return plugin.load(options)
    except PluginFaultError as error:
        raise ConfigError(list[object](located(group, settings, ("handler",), error))) from error


def handler_problems(group: str, settings: GroupConfig) -> list[ConfigProblem]:
    """What is wrong with a group's plugin and its options; the plugin is imported, and nothing of it runs."""
    if settings.handler is None:
        return []
    try:
        _plugin_and_options(settings.handler)
    except PluginFaultError as error:
        return list(located(group, settings, ("handler",), error))
    return []


def find_plugin(name: str) -> HandlerPlugin:
    """Import the plugin of this name, or `module:attribute`. Raises PluginFaultError."""
    return HandlerPlugin.of(name, find_object("handler", ENTRY_POINT_GROUP, name))


def _plugin_and_options(handler: HandlerConfig, given: object = None) -> tuple[HandlerPlugin, Any]:
    plugin = find_plugin(handler.plugin) if given is None else HandlerPlugin.of(handler.plugin, given)
    return plugin, plugin.validated(plain(handler.options))
