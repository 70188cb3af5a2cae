"""Describes installed handlers and pipelines with their options, including broken ones, for `rmqd handlers`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Final, Literal

from pydantic import BaseModel

from rmqd.plugins import handlers as handler_registry
from rmqd.plugins import pipelines as pipeline_registry
from rmqd.plugins.entry_points import installed, look_again
from rmqd.plugins.form import PluginFaultError
from rmqd.plugins.handler_plugin import HandlerPlugin
from rmqd.plugins.lookup import loaded
from rmqd.plugins.pipelines import FrameFunction, pipeline_of

Kind = Literal["handler", "pipeline"]

_GROUPS: Final[dict[Kind, str]] = {
    "handler": handler_registry.ENTRY_POINT_GROUP,
    "pipeline": pipeline_registry.ENTRY_POINT_GROUP,
}


@dataclass(frozen=True, slots=True)
class OptionDescription:
    """One option, as the handler's model describes it."""

    name: str
    type: str
    required: bool
    default: Any
    """The default as JSON; None if there is none, or if it is null."""
    description: str


@dataclass(frozen=True, slots=True)
class HandlerDescription:
    """One installed handler or pipeline."""

    kind: Kind
    name: str
    target: str
    """`module:attribute`."""
    distribution: str
    version: str
    description: str
    options: tuple[OptionDescription, ...] | None
    """None if it takes options without a model; empty if it takes none."""
    error: str | None
    """Why it cannot be used; None if it can."""


def describe_installed() -> list[HandlerDescription]:
    """Import and describe every installed handler and pipeline. A broken one is described with its error."""
    look_again()
    return [
        _describe(kind, name, entry_points)
        for kind, group in _GROUPS.items()
        for name, entry_points in installed(group).items()
    ]


def _describe(kind: Kind, name: str, entry_points: list[EntryPoint]) -> HandlerDescription:
    plugin: HandlerPlugin | FrameFunction | None = None
    error = None
    try:
        target = loaded(kind, entry_points)
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
        description=_first_line(plugin.target) if plugin else "",
        options=_options(plugin) if plugin else (),
        error=error,
    )


def _first_line(target: object) -> str:
    text = inspect.getdoc(target) or ""
    return text.strip().partition("\n")[0]


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
    """Return a JSON Schema's type in a few words: `string`, `list of string`, `info | debug`."""
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
