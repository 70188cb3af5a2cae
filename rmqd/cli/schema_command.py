"""`rmqd schema`: the JSON Schema of the configuration."""

from __future__ import annotations

from rmqd.cli.terminal.output import say_json
from rmqd.runtime.lazy_imports import lazily

with lazily():
    from rmqd.config import load


def schema() -> None:
    """Print the JSON Schema of the configuration.

    Editors use it to complete and check rmqd.yaml.

    Example: rmqd schema > rmqd.schema.json
    """
    say_json(load.config_schema())
