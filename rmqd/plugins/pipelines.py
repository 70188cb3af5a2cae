"""Finds pipelines by their entry point in `rmqd.pipelines`, or as `module:attribute`; also the code of sinks.

A pipeline is a function of a DataFrame and its SparkSession that returns another DataFrame. This module does not need
Spark.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rmqd.config.model.group import GroupConfig
from rmqd.errors import ConfigError
from rmqd.plugins.form import (
    OptionsForm,
    PluginFaultError,
    plugin_fault,
    refuse_unbound,
    with_article,
)
from rmqd.plugins.lookup import find_object, located, object_at
from rmqd.typed.callables import is_async, yields

ENTRY_POINT_GROUP: Final = "rmqd.pipelines"


@dataclass(frozen=True, slots=True)
class FrameFunction:
    """A function of a DataFrame, one more argument, and perhaps options. It was imported, and has not run."""

    name: str
    kind: str
    """Its name in messages."""
    target: Callable[..., Any]
    options: OptionsForm

    @classmethod
    def of(cls, name: str, target: object, kind: str, form: str) -> FrameFunction:
        """Check an object; `form` names its two arguments. Raises PluginFaultError if it is not such a function."""
        accepted = f"expected a function of ({form}) or ({form}, options)"
        if inspect.isclass(target) or not callable(target):
            what = "a class" if inspect.isclass(target) else with_article(type(target).__name__)
            raise plugin_fault(f"the plugin is {what}, not a {kind}; {accepted}")
        refuse_unbound(name, target, accepted)
        if yields(target) or is_async(target):
            word = "with yield" if yields(target) else "with async"
            raise plugin_fault(f"the plugin is a function {word}, which would never run; {accepted}")
        try:
            options = OptionsForm.of(target, 2)
        except ValueError as error:
            raise plugin_fault(f"the plugin {error}; {accepted}") from None
        if options.needs > 2 or options.most < 2:
            count = options.needs + options.takes if options.needs > 2 else options.most
            raise plugin_fault(f"the plugin takes {count} argument{'' if count == 1 else 's'}; {accepted}")
        return cls(name, kind, target, options)

    def validated(self, options: dict[str, Any]) -> Any:
        """Return the options in the function's form: an instance of its model, or the dict. Raises PluginFaultError."""
        return self.options.validated(self.kind, options)

    def bound(self, options: dict[str, Any]) -> Callable[[Any, Any], Any]:
        """Return the function with its options bound, so that two arguments remain. Raises PluginFaultError."""
        return self.options.bound(self.target, self.validated(options))


def find_pipeline(name: str) -> FrameFunction:
    """Import the pipeline of this name, or `module:attribute`. Raises PluginFaultError."""
    return pipeline_of(name, find_object("pipeline", ENTRY_POINT_GROUP, name))


def pipeline_of(name: str, target: object) -> FrameFunction:
    """Check the object of an entry point. Raises PluginFaultError if it is not a pipeline."""
    return FrameFunction.of(name, target, "pipeline", "frame, spark")


def load_pipeline(group: str, settings: GroupConfig) -> Callable[[Any, Any], Any]:
    """Return a group's pipeline as a function of (frame, spark). Raises ConfigError with all problems."""
    assert settings.pipeline is not None
    try:
        return find_pipeline(settings.pipeline.plugin).bound(settings.pipeline.options)
    except PluginFaultError as error:
        raise ConfigError(list[object](located(group, settings, ("pipeline",), error))) from error


def load_batch_function(group: str, settings: GroupConfig) -> Callable[[Any, Any], Any]:
    """Return the function that a foreach_batch sink calls with (frame, batch_id). Raises ConfigError."""
    assert settings.sink is not None
    try:
        target = object_at(settings.sink.plugin)
        function = FrameFunction.of(settings.sink.plugin, target, "function of batches", "frame, batch_id")
        return function.bound(settings.sink.options)
    except PluginFaultError as error:
        raise ConfigError(list[object](located(group, settings, ("sink",), error))) from error


def pipeline_loaders(settings: GroupConfig) -> list[Callable[[str, GroupConfig], object]]:
    """Return the functions that load a group's pipeline and its sink's function."""
    loaders: list[Callable[[str, GroupConfig], object]] = []
    if settings.pipeline is not None:
        loaders.append(load_pipeline)
    if settings.sink is not None and settings.sink.format == "foreach_batch" and settings.sink.plugin:
        loaders.append(load_batch_function)
    return loaders
