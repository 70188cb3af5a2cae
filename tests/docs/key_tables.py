"""Generate the tables of docs/configuration.md from the schema. Run `python -m tests.docs.key_tables`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rmqd.config.load import config_schema

PAGE = Path(__file__).parent.parent.parent / "docs" / "configuration.md"
BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"

SECTIONS = {
    "": "At the top",
    "client.": "`client`: the connections",
    "client.tls.": "`client.tls`",
    "clusters.NAME.": "`clusters.NAME`: another cluster",
    "http.": "`http`",
    "metrics.": "`metrics`",
    "tracing.": "`tracing`",
    "log.": "`log`",
    "groups.NAME.": "`groups.NAME`: one consumer group",
    "groups.NAME.handler.": "`groups.NAME.handler`",
    "groups.NAME.handler.canary.": "`groups.NAME.handler.canary`: a second handler",
    "groups.NAME.offset_store.": "`groups.NAME.offset_store`",
    "groups.NAME.retry.": "`groups.NAME.retry`: retries in place",
    "groups.NAME.dead_letter.": "`groups.NAME.dead_letter`",
    "groups.NAME.circuit_breaker.": "`groups.NAME.circuit_breaker`: stop calling a failing handler",
    "groups.NAME.deduplicate.": "`groups.NAME.deduplicate`",
    "groups.NAME.spark.": "`groups.NAME.spark`",
    "groups.NAME.pipeline.": "`groups.NAME.pipeline`",
    "groups.NAME.sink.": "`groups.NAME.sink`",
    "groups.NAME.allocate_queues[].": "`groups.NAME.allocate_queues`, each entry",
}


def tables() -> str:
    """A table for each section, keys in the order of the models."""
    rows: dict[str, list[str]] = {prefix: [] for prefix in SECTIONS}
    schema = config_schema()
    for prefix, key, description in _keys(schema, schema, ""):
        if prefix not in rows:  # the client settings of other clusters are the same
            continue
        rows[prefix].append(f"| `{key}` | {_default(description)} | {_meaning(prefix, key, description)} |")
    return "\n".join(
        f"### {title}\n\n| key | default | meaning |\n| --- | --- | --- |\n" + "\n".join(rows[prefix]) + "\n"
        for prefix, title in SECTIONS.items()
    )


def with_tables(page: str) -> str:
    """The page with its tables replaced by the current ones."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{rest.split(END)[1]}"


def _keys(schema: dict[str, Any], part: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    required = part.get("required") or _required_of_groups(schema, prefix)
    for key, description in part["properties"].items():
        yield prefix, key, {**description, "required": key in required}
        for inner, suffix in _inside(description):
            yield from _keys(schema, schema["$defs"][inner], f"{prefix}{key}{suffix}.")


def _required_of_groups(schema: dict[str, Any], prefix: str) -> list[str]:
    part: dict[str, Any] = schema["then"]["properties"]["groups"]["additionalProperties"]
    group, _, key = prefix.partition("groups.NAME.")
    if group or not prefix:
        return []
    inner: dict[str, Any] = part["properties"].get(key.removesuffix("."), {}) if key else part
    return list(inner.get("required", []))


def _inside(description: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The sections inside a key, each with the suffix of its path: none, .NAME or []."""
    forms = [(description, ""), *((form, "") for form in description.get("anyOf", []))]
    forms.append((description.get("additionalProperties", {}), ".NAME"))
    forms.append((description.get("items", {}), "[]"))
    for form, suffix in forms:
        if isinstance(form, dict) and "$ref" in form:
            yield form["$ref"].rpartition("/")[2], suffix


def _default(description: dict[str, Any]) -> str:
    if description["required"]:
        return "required"
    if any(_inside(description)):
        return "see below"
    default = description.get("default")
    return "none" if default in (None, "", []) else f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _meaning(prefix: str, key: str, description: dict[str, Any]) -> str:
    parts = [description.get("description", ""), _choices(description)]
    return "; ".join(part for part in parts if part).replace("|", "\\|")


def _choices(description: dict[str, Any]) -> str:
    for form in [description, *description.get("anyOf", [])]:
        words = form.get("enum", [])
        if any(not re.search(rf"\b{word}\b", description.get("description", "")) for word in words):
            return "one of " + ", ".join(f"`{word}`" for word in words)
    return ""


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
