"""`rmqd schema`: the JSON Schema of the configuration."""

from __future__ import annotations

import typer

HELP = """Print the JSON Schema of the configuration.

Editors complete and check rmqd.yaml by it.

Example: rmqd schema > rmqd.schema.json
"""


def schema() -> None:
    """Print the JSON Schema of the configuration."""
    import json

    from rmqd.config.schema import config_schema

    typer.echo(json.dumps(config_schema(), indent=2, ensure_ascii=False))
