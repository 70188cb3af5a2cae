"""`rmqd schema`: a JSON Schema that accepts and refuses the same files as rmqd."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from tests.cli.in_process import rmqd
from tests.cli.test_check import GOOD, SAMPLE


def schema() -> dict[str, Any]:
    result = rmqd("schema", "-o", "json")
    assert result.code == 0
    document = json.loads(result.out)
    assert isinstance(document, dict)
    return document


def faults(value: Any, rule: dict[str, Any], root: dict[str, Any], path: str = "") -> list[str]:
    """The violations of a JSON Schema by a value. Keywords that our schema does not use are errors."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "null": type(None)}
    found: list[str] = []
    kind = rule.get("type")
    if kind and (not isinstance(value, kinds[kind]) or (kind == "integer" and isinstance(value, bool))):
        return [f"{path}: not {kind}"]
    for keyword, wanted in rule.items():
        match keyword:
            case "$ref":
                found += faults(value, root["$defs"][wanted.rpartition("/")[2]], root, path)
            case "anyOf":
                found += [] if any(not faults(value, one, root, path) for one in wanted) else [f"{path}: none of them"]
            case "properties":
                for key in value.keys() & wanted.keys():
                    found += faults(value[key], wanted[key], root, f"{path}.{key}")
            case "required":
                found += [f"{path}.{key}: missing" for key in wanted if key not in value]
            case "additionalProperties":
                known = {key for key in value for one in rule.get("patternProperties", ()) if re.search(one, key)}
                for key in value.keys() - rule.get("properties", {}).keys() - known if wanted is not True else ():
                    inner = wanted and faults(value[key], wanted, root, f"{path}.{key}")
                    found += [f"{path}.{key}: unknown"] if wanted is False else inner
            case "items":
                for index, item in enumerate(value):
                    found += faults(item, wanted, root, f"{path}[{index}]")
            case "enum" | "const":
                found += [] if value in (wanted if keyword == "enum" else [wanted]) else [f"{path}: not {wanted}"]
            case "pattern" if isinstance(value, str):
                found += [] if re.search(wanted, value) else [f"{path}: not {wanted}"]
            case "minimum" | "maximum":
                wrong = value < wanted if keyword == "minimum" else value > wanted
                found += [f"{path}: {keyword} {wanted}"] if wrong else []
            case "minItems" | "minLength":
                found += [f"{path}: too short"] if len(value) < wanted else []
            case "if":
                found += [] if faults(value, wanted, root, path) else faults(value, rule["then"], root, path)
            case "not":
                found += [] if faults(value, wanted, root, path) else [f"{path}: not allowed"]
            case "patternProperties":
                assert all(not inner for inner in wanted.values())  # anything
            case "then" | "type" | "$schema" | "$defs" | "title" | "description" | "default":
                pass
            case _:
                raise AssertionError(f"{path}: the test does not know {keyword}")
    return found


def test_the_schema_accepts_what_rmqd_accepts() -> None:
    root = schema()
    for text in (SAMPLE.read_text(), GOOD):
        assert faults(yaml.safe_load(text), root, root) == []


def test_the_schema_refuses_what_rmqd_refuses() -> None:
    root = schema()
    refused = {
        "    pull_batch_size: 0\n": ".groups.mailer.pull_batch_size: none of them",
        "    consume_timeout: 15\n": ".groups.mailer.consume_timeout: none of them",
        "    consume_mode: sideways\n": ".groups.mailer.consume_mode: none of them",
        "    pull_batchsize: 3\n": ".groups.mailer.pull_batchsize: unknown",
        "  other: {}\n": ".groups.other.subscriptions: missing",
        "nameserver_url: 5\n": ".nameserver_url: not string",
    }
    assert {change: faults(yaml.safe_load(GOOD + change), root, root) for change in refused} == {
        change: [expected] for change, expected in refused.items()
    }


def test_the_schema_gives_defaults_as_they_are_written_in_the_file() -> None:
    root = schema()
    group = root["$defs"]["GroupConfig"]["properties"]
    written = {
        "consume_timeout": "15m",
        "pull_threshold_size_for_queue": "100MiB",
        "pull_threshold_for_topic": -1,
        "pull_interval": "0s",
        "auto_commit": True,
        "consume_mode": "concurrently",
    }
    assert {key: group[key]["default"] for key in written} == written
    for key, rule in group.items():
        # An editor inserts the default: it must be accepted.
        assert "default" not in rule or rule["default"] is None or faults(rule["default"], rule, root, key) == []
