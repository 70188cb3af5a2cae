"""The JSON Schema of the configuration, for editors."""

from __future__ import annotations

from typing import Any

from rmqd.config.model.root import RootConfig


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of `rmqd.yaml`. Defaults and limits have their units, as in the file."""
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema |= _without_titles(RootConfig.model_json_schema())
    return schema | {"title": "rmqd configuration"}


def _without_titles(schema: Any, *, names: bool = False) -> Any:
    """Return the schema without pydantic's titles, which only repeat the keys. `names`: the keys at this level are
    names.
    """
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value, names=not names and key in ("properties", "$defs"))
        for key, value in schema.items()
        if names or key != "title"
    }
