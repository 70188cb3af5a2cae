"""Finds handlers by their entry point in `rmqd.handlers`, or as `module:attribute`.

Only plugins that a configuration names are imported. An error becomes a problem of that configuration.
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
    """Create the handler of a group, without starting it. Raises ConfigError with all problems.

    `given` is an object that replaces the configured plugin.
    """
    assert settings.handler is not None
    try:
        plugin, options = _plugin_and_options(settings.handler, given)
        return with_middleware(plugin.load(options), settings.handler.middleware)
    except PluginFaultError as error:
        raise ConfigError(list[object](located(group, settings, ("handler",), error))) from error


def handler_problems(group: str, settings: GroupConfig) -> list[ConfigProblem]:
    """Return the problems of a group's handler, its options and its middleware. All are imported, but not run."""
    if settings.handler is None:
        return []
    try:
        typed = _plugin_and_options(settings.handler)[0].typed
        if typed is not None and typed.form.named("connection") is not None and settings.offset_store.plugin == BROKER:
            raise plugin_fault("the handler takes offset_connection, which needs offset_store: {plugin: NAME}")
    except PluginFaultError as error:
        return list(located(group, settings, ("handler",), error))
    return []


def call_limit(settings: GroupConfig) -> CallLimit | None:
    """Return the limit that keeps calls below the configured concurrency of a group's handler, which must be loaded.

    None if there is no limit, or if the concurrency is the default, which was not chosen.
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
            f"{name} is a pipeline, not a handler; expected engine: spark, pipeline: {{plugin: {name}}} instead of "
            "handler, and a sink; see docs/pipelines.md"
        )
    return HandlerPlugin.of(name, find_object("handler", ENTRY_POINT_GROUP, name))


def _plugin_and_options(handler: HandlerConfig, given: object = None) -> tuple[HandlerPlugin, Any]:
    plugin = find_plugin(handler.plugin) if given is None else HandlerPlugin.of(handler.plugin, given)
    options = plugin.validated(handler.options)
    if faults := tuple(middleware_faults(handler.middleware)):
        raise PluginFaultError(*faults)
    return plugin, options
