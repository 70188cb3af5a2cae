"""Finds and loads installed handlers and pipelines, and describes them and their options for `rmqd handlers`.

A pipeline is a function that takes a DataFrame and its SparkSession, and returns another DataFrame. This module works
without Spark.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Final, Literal

from pydantic import BaseModel

from rmqd.config.model.group_model import BROKER, GroupConfig, HandlerConfig
from rmqd.consumer.canary import Canary
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.handler_api.batch import LoadedHandler
from rmqd.handler_api.typed.signatures import is_async, is_generator_function
from rmqd.plugins.entry_points import (
    faults_located,
    find_object,
    forget_entry_points,
    import_attribute,
    import_object,
    installed_entry_points,
)
from rmqd.plugins.handler_plugin import CallLimit, HandlerPlugin, with_start_stop
from rmqd.plugins.option_form import OptionsForm, PluginFaultError, plugin_fault, refuse_unbound, with_article
from rmqd.plugins.strategies import middleware_faults, with_middleware
from rmqd.runtime.clock import Clock

HANDLER_ENTRY_POINTS: Final = "rmqd.handlers"


def load_handler(group: str, settings: GroupConfig, given: object = None) -> LoadedHandler:
    """Create a group's handler with its middleware, without starting it. Raises ConfigError with all problems.

    `given` is a function or class that replaces the configured plugin; None to use the configured plugin.
    """
    assert settings.handler is not None
    with faults_located(group, settings, "handler"):
        plugin, options = _plugin_and_options(settings.handler, given)
        return with_middleware(plugin.load(options), settings.handler.middleware)


def load_canary(group: str, settings: GroupConfig, first: LoadedHandler) -> LoadedHandler:
    """Create a group's canary. In mode `live`, both it and `first` must be async, or neither. Raises ConfigError."""
    assert settings.handler is not None
    with faults_located(group, settings, "handler", "canary"):
        plugin, options = _plugin_and_options(settings.handler.with_promoted_canary)
        canary = with_middleware(plugin.load(options), settings.handler.middleware)
        if settings.handler.canary is not None and settings.handler.canary.mode == "live":
            kinds = {True: "async def", False: "def"}
            if canary.is_async != first.is_async:
                message = f"{canary.name} is written with {kinds[canary.is_async]}, but the handler {first.name} with "
                raise plugin_fault(f"{message}{kinds[first.is_async]}; expected the same, or mode: shadow")
        return canary


def with_canary(first: LoadedHandler, canary: LoadedHandler, options: ConsumerOptions, clock: Clock) -> LoadedHandler:
    """Return the handler `first` with the canary around it. The canary starts before `first`, and stops after it."""
    one = Canary(canary, options, clock)
    return with_start_stop(one.wrap_handler(first), [(one.start, one.stop)])


def check_handler(group: str, settings: GroupConfig) -> None:
    """Import and check a group's handler, canary and middleware, without calling them. Raises ConfigError."""
    if settings.handler is None:
        return
    with faults_located(group, settings, "handler"):
        _check(settings, settings.handler)
    if settings.handler.canary is not None:
        with faults_located(group, settings, "handler", "canary"):
            _check(settings, settings.handler.with_promoted_canary)


def _check(settings: GroupConfig, handler: HandlerConfig) -> None:
    typed = _plugin_and_options(handler)[0].typed
    if (
        typed is not None
        and typed.form.parameter_for("connection") is not None
        and settings.offset_store.plugin == BROKER
    ):
        raise plugin_fault("the handler takes offset_connection, which needs offset_store: {plugin: NAME}")


def call_limit(settings: GroupConfig) -> CallLimit | None:
    """Return a handler's own limit of concurrent calls, if it is below the configured `handler.concurrency`.

    None if the limit is not lower, or if `handler.concurrency` is not set. The handler must be loaded before.
    """
    handler = settings.handler
    if handler is None or handler.processes or settings.engine != "local":
        return None
    if "concurrency" not in handler.model_fields_set:
        return None
    plugin, options = _plugin_and_options(handler)
    limit = plugin.call_limit(options)
    return limit if limit is not None and limit.calls < handler.max_concurrent_calls else None


def find_plugin(name: str) -> HandlerPlugin:
    """Import the handler with this entry point name, or at `module:attribute`. Raises PluginFaultError."""
    if name in installed_entry_points(PIPELINE_ENTRY_POINTS) and name not in installed_entry_points(
        HANDLER_ENTRY_POINTS
    ):
        raise plugin_fault(
            f"{name} is a pipeline, not a handler; expected engine: spark, pipeline: {{plugin: {name}}} instead of "
            "handler, and a sink; see docs/pipelines.md"
        )
    return HandlerPlugin.of(name, find_object("handler", HANDLER_ENTRY_POINTS, name))


def _plugin_and_options(handler: HandlerConfig, given: object = None) -> tuple[HandlerPlugin, Any]:
    plugin = find_plugin(handler.plugin) if given is None else HandlerPlugin.of(handler.plugin, given)
    options = plugin.options.validate_options("handler", handler.options)
    if faults := tuple(middleware_faults(handler.middleware)):
        raise PluginFaultError(*faults)
    return plugin, options


PIPELINE_ENTRY_POINTS: Final = "rmqd.pipelines"


@dataclass(frozen=True, slots=True)
class FrameFunction:
    """An imported function that takes a DataFrame, a second argument, and optionally the plugin's options."""

    name: str
    kind: str
    """The word for the function in error messages, such as "pipeline"."""
    target: Callable[..., Any]
    options: OptionsForm

    @classmethod
    def of(cls, name: str, target: object, kind: str, form: str) -> FrameFunction:
        """Check an imported object. Raises PluginFaultError if it is not a function of the arguments in `form`."""
        accepted = f"expected a function of ({form}) or ({form}, options)"
        if inspect.isclass(target) or not callable(target):
            what = "a class" if inspect.isclass(target) else with_article(type(target).__name__)
            raise plugin_fault(f"the plugin is {what}, not a {kind}; {accepted}")
        refuse_unbound(name, target, accepted)
        if is_generator_function(target) or is_async(target):
            word = "with yield" if is_generator_function(target) else "with async"
            raise plugin_fault(f"the plugin is a function {word}, which would never run; {accepted}")
        return cls(name, kind, target, OptionsForm.of_function(target, 2, accepted))

    def bound(self, options: dict[str, Any]) -> Callable[[Any, Any], Any]:
        """Validate and bind the options. Return a function of the two arguments. Raises PluginFaultError."""
        return self.options.bind_options(self.target, self.options.validate_options(self.kind, options))


def pipeline_of(name: str, target: object) -> FrameFunction:
    """Return the imported object `target` as a pipeline. Raises PluginFaultError if it is not a pipeline."""
    return FrameFunction.of(name, target, "pipeline", "frame, spark")


def load_pipeline(group: str, settings: GroupConfig) -> Callable[[Any, Any], Any]:
    """Return a group's pipeline as a function of (frame, spark). Raises ConfigError with all problems."""
    assert settings.pipeline is not None
    name = settings.pipeline.plugin
    with faults_located(group, settings, "pipeline"):
        pipeline = pipeline_of(name, find_object("pipeline", PIPELINE_ENTRY_POINTS, name))
        return pipeline.bound(settings.pipeline.options)


def load_batch_function(group: str, settings: GroupConfig) -> Callable[[Any, Any], Any]:
    """Return the function that a foreach_batch sink calls with (frame, batch_id). Raises ConfigError."""
    assert settings.sink is not None
    name = settings.sink.plugin
    with faults_located(group, settings, "sink"):
        function = FrameFunction.of(name, import_attribute(name), "function of batches", "frame, batch_id")
        return function.bound(settings.sink.options)


def pipeline_loaders(settings: GroupConfig) -> list[Callable[[str, GroupConfig], object]]:
    """Return the functions that load a group's pipeline and its sink's function; empty for a group without them."""
    loaders: list[Callable[[str, GroupConfig], object]] = []
    if settings.pipeline is not None:
        loaders.append(load_pipeline)
    if settings.sink is not None and settings.sink.format == "foreach_batch" and settings.sink.plugin:
        loaders.append(load_batch_function)
    return loaders


Kind = Literal["handler", "pipeline"]

_GROUPS: Final[dict[Kind, str]] = {"handler": HANDLER_ENTRY_POINTS, "pipeline": PIPELINE_ENTRY_POINTS}


@dataclass(frozen=True, slots=True)
class OptionDescription:
    """One option of a handler or pipeline, from the JSON schema of its pydantic model."""

    name: str
    type: str
    required: bool
    default: Any
    """The default as a JSON value; None if the option has no default, or if the default is null."""
    description: str


@dataclass(frozen=True, slots=True)
class HandlerDescription:
    """One installed handler or pipeline, as `rmqd handlers` shows it."""

    kind: Kind
    name: str
    target: str
    """The object as `module:attribute`."""
    distribution: str
    version: str
    description: str
    options: tuple[OptionDescription, ...] | None
    """The options; None if the plugin takes options without a model; empty if it takes no options, or has an error."""
    error: str | None
    """Why the plugin cannot be used; None if it can be used."""


def describe_installed() -> list[HandlerDescription]:
    """Import and describe every installed handler and pipeline. An unusable plugin is described with its error."""
    forget_entry_points()
    return [
        _describe(kind, name, entry_points)
        for kind, group in _GROUPS.items()
        for name, entry_points in installed_entry_points(group).items()
    ]


def _describe(kind: Kind, name: str, entry_points: list[EntryPoint]) -> HandlerDescription:
    plugin: HandlerPlugin | FrameFunction | None = None
    error = None
    try:
        target = import_object(kind, entry_points)
        plugin = HandlerPlugin.of(name, target) if kind == "handler" else pipeline_of(name, target)
    except PluginFaultError as fault:
        error = str(fault)
    entry_point = entry_points[0]
    return HandlerDescription(
        kind=kind,
        name=name,
        target=entry_point.value,
        distribution=entry_point.dist.name if entry_point.dist else "",
        version=entry_point.dist.version if entry_point.dist else "",
        description=(inspect.getdoc(plugin.target) or "").strip().partition("\n")[0] if plugin else "",
        options=_options(plugin) if plugin else (),
        error=error,
    )


def _options(plugin: HandlerPlugin | FrameFunction) -> tuple[OptionDescription, ...] | None:
    if not plugin.options.takes:
        return ()
    return None if plugin.options.model is None else tuple(_fields(plugin.options.model))


def _fields(model: type[BaseModel]) -> list[OptionDescription]:
    schema = model.model_json_schema()
    required = schema.get("required", [])
    definitions = schema.get("$defs", {})
    return [
        OptionDescription(
            name=name,
            type=_type_name(field, definitions),
            required=name in required,
            default=field.get("default"),
            description=" ".join(field.get("description", "").split()),
        )
        for name, field in schema.get("properties", {}).items()
    ]


def _type_name(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return the type in a JSON schema as text, such as `string`, `list of string` or `info | debug`."""
    if "$ref" in schema:
        return _type_name(definitions.get(schema["$ref"].rpartition("/")[2], {}), definitions)
    for words in ("anyOf", "oneOf"):
        if words in schema:
            return " | ".join(dict.fromkeys(_type_name(choice, definitions) for choice in schema[words]))
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type_name(schema.get('items', {}), definitions)}"
    return {"object": "mapping", "boolean": "true | false"}.get(kind, str(kind))
