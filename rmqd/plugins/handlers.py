"""Finds handlers: by their name among the entry points `rmqd.handlers`, or as `module:attribute`.

Only plugins that a configuration names are imported. An error on the way is a problem of that configuration.
"""

from __future__ import annotations

from typing import Any, Final

from rmqd.config.model.group import BROKER, GroupConfig, HandlerConfig
from rmqd.config.problems import ConfigProblem
from rmqd.errors import ConfigError
from rmqd.loaded_handler import LoadedHandler
from rmqd.plugins.entry_points import installed
from rmqd.plugins.form import PluginFaultError, plugin_fault
from rmqd.plugins.handler_plugin import CallLimit, HandlerPlugin
from rmqd.plugins.lookup import find_object, located
from rmqd.plugins.middleware import middleware_faults, with_middleware
from rmqd.plugins.pipelines import ENTRY_POINT_GROUP as PIPELINES

ENTRY_POINT_GROUP: Final = "rmqd.handlers"


def load_handler(group: str, settings: GroupConfig, given: object = None) -> LoadedHandler:
    """Make the handler of a group, without starting it. Raises ConfigError with all problems.

    `given` is a plugin's object to use instead of the one that the configuration names.
    """
    assert settings.handler is not None
    try:
        plugin, options = _plugin_and_options(settings.handler, given)
        return with_middleware(plugin.load(options), settings.handler.middleware)
    except PluginFaultError as error:
        raise ConfigError(list[object](located(group, settings, ("handler",), error))) from error


def handler_problems(group: str, settings: GroupConfig) -> list[ConfigProblem]:
    """The problems of a group's handler, its options and its middleware, which are imported. None of them runs."""
    if settings.handler is None:
        return []
    try:
        typed = _plugin_and_options(settings.handler)[0].typed
        if typed is not None and typed.form.named("connection") is not None and settings.offset_store.plugin == BROKER:
            raise plugin_fault("the handler takes offset_connection; accepted: beside offset_store: {plugin: NAME}")
    except PluginFaultError as error:
        return list(located(group, settings, ("handler",), error))
    return []


def call_limit(settings: GroupConfig) -> CallLimit | None:
    """What keeps calls below the concurrency that is written for a group's handler, which was loaded before.

    None where nothing does, and where the concurrency is the default, which nobody has asked for.
    """
    handler = settings.handler
    if handler is None or handler.processes or settings.engine != "local":
        return None
    if "concurrency" not in handler.model_fields_set:
        return None
    plugin, options = _plugin_and_options(handler)
    limit = plugin.call_limit(options)
    return limit if limit is not None and limit.calls < handler.most_calls else None


def find_plugin(name: str) -> HandlerPlugin:
    """Import the plugin of this name, or `module:attribute`. Raises PluginFaultError."""
    if name in installed(PIPELINES) and name not in installed(ENTRY_POINT_GROUP):
        raise plugin_fault(
            f"{name} is a pipeline, and no handler; accepted: engine: spark, pipeline: {{plugin: {name}}} in the place "
            "of handler, and a sink, as docs/pipelines.md says"
        )
    return HandlerPlugin.of(name, find_object("handler", ENTRY_POINT_GROUP, name))


def _plugin_and_options(handler: HandlerConfig, given: object = None) -> tuple[HandlerPlugin, Any]:
    plugin = find_plugin(handler.plugin) if given is None else HandlerPlugin.of(handler.plugin, given)
    options = plugin.validated(handler.options)
    if faults := tuple(middleware_faults(handler.middleware)):
        raise PluginFaultError(*faults)
    return plugin, options
