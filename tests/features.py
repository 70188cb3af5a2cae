"""`python -m tests.features`: list the features of rmqd, one line each.

The commands with their options, the keys of the configuration, the handlers with their options, the metrics and the
public names of Python. Compare two commits with `diff`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rmqd

METRICS = Path(__file__).parents[1] / "docs" / "metrics.md"


def _rmqd(*arguments: str) -> str:
    command = [sys.executable, "-m", "rmqd", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={"COLUMNS": "200"}).stdout


def _commands(*path: str) -> Iterator[str]:
    text = _rmqd(*path, "--help")
    options, _, commands = text.partition("\nCommands:\n")
    yield " ".join(("command rmqd", *path))
    for option in re.findall(r"^  (?:-\w, )?(--[\w-]+)", options, re.M):
        yield " ".join(("option rmqd", *path, option))
    for command in re.findall(r"^  ([a-z][\w-]*)", commands, re.M):
        yield from _commands(*path, command)


def _keys(schema: dict[str, Any], definitions: dict[str, Any], path: str, seen: tuple[str, ...]) -> Iterator[str]:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name:
        if name in seen:
            return
        schema, seen = definitions[name], (*seen, name)
    for part in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(part, ()):
            yield from _keys(one, definitions, path, seen)
    for key, value in schema.get("properties", {}).items():
        yield f"key {path}{key}"
        yield from _keys(value, definitions, f"{path}{key}.", seen)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _keys(schema[key], definitions, f"{path}*.", seen)


def main() -> None:
    schema = json.loads(_rmqd("schema"))
    handlers = json.loads(_rmqd("handlers", "-o", "json"))
    lines = {
        *_commands(),
        *_keys(schema, schema.get("$defs", {}), "", ()),
        *(f"metric {name}" for name in re.findall(r"`(rmqd_\w+)", METRICS.read_text())),
        *(f"{one['kind']} {one['name']}" for one in handlers),
        *(f"{one['kind']} {one['name']}.{option['name']}" for one in handlers for option in one["options"]),
        *(f"name rmqd.{name}" for name in rmqd.__all__),
    }
    sys.stdout.write("".join(f"{line}\n" for line in sorted(lines)))


if __name__ == "__main__":
    main()
