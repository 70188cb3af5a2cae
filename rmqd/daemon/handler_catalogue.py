"""The installed handlers with their options, and the broken ones with why: what `rmqd handlers` prints."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from pydantic import BaseModel

from rmqd.daemon.entry_points import installed, look_again
from rmqd.daemon.handler_plugin import HandlerFaultError, HandlerPlugin
from rmqd.daemon.handler_registry import ENTRY_POINT_GROUP, plugin_of


@dataclass(frozen=True, slots=True)
class OptionDescription:
    """One option, as the handler's model describes it."""

    name: str
    type: str
    required: bool
    default: Any
    """As JSON; None where there is none, or where it is null."""
    description: str


@dataclass(frozen=True, slots=True)
class HandlerDescription:
    """One installed handler."""

    name: str
    target: str
    """`module:attribute`."""
    distribution: str
    version: str
    description: str
    options: tuple[OptionDescription, ...] | None
    """None where the handler takes a mapping without a model; empty where it takes no options."""
    error: str | None
    """Why it cannot be used; None for a handler that can."""


def describe_installed() -> list[HandlerDescription]:
    """Import every installed handler and tell about it; a broken one is told by its error."""
    look_again()
    return [_describe(name, entry_points) for name, entry_points in installed(ENTRY_POINT_GROUP).items()]


def _describe(name: str, entry_points: list[EntryPoint]) -> HandlerDescription:
    plugin, error = None, None
    try:
        plugin = plugin_of(entry_points)
    except HandlerFaultError as fault:
        error = str(fault)
    entry_point = entry_points[0]
    return HandlerDescription(
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


def _options(plugin: HandlerPlugin) -> tuple[OptionDescription, ...] | None:
    if not plugin.takes_options:
        return ()
    return None if plugin.options_model is None else tuple(_fields(plugin.options_model))


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
    """A JSON Schema's type in a few words: `string`, `list of string`, `info | debug`."""
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
