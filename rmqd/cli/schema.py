"""`rmqd schema`: the JSON Schema of the configuration."""

from __future__ import annotations

from rmqd.cli.render import say_json

HELP = """\
Editors use it to complete and check rmqd.yaml.

Example: rmqd schema > rmqd.schema.json
"""


def schema() -> None:
    """Print the JSON Schema of the configuration."""
    from rmqd.config.schema import config_schema

    say_json(config_schema())
