"""`rmqd schema`: the JSON Schema of the configuration."""

from __future__ import annotations

from rmqd.cli.terminal.output import say_json
from rmqd.config.load import config_schema


def schema() -> None:
    """Print the JSON Schema of the configuration.

    Editors use it to complete and check rmqd.yaml.

    Example: rmqd schema > rmqd.schema.json
    """
    say_json(config_schema())
