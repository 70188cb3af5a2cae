"""`rmqd handlers`: lists the installed handlers and pipelines with their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from rmqd.cli.control import Output, check_output
from rmqd.cli.render import say_json

if TYPE_CHECKING:
    from rmqd.plugins.catalogue import HandlerDescription, OptionDescription

HELP = """\
Broken handlers are listed with their errors.

Example: rmqd handlers -o json
"""


def handlers(
    output: Output = "table",
) -> None:
    """List the installed handlers and pipelines with their distributions and options."""
    from rmqd.plugins.catalogue import describe_installed

    check_output(output)
    found = describe_installed()
    if output == "json":
        from dataclasses import asdict

        say_json([asdict(handler) for handler in found])
    elif found:
        typer.echo("\n\n".join("\n".join(handler_lines(handler)) for handler in found))
    else:
        typer.echo("no handlers are installed; run `pip install rmqd-handlers` for log, jsonl and exec", err=True)


def handler_lines(handler: HandlerDescription) -> list[str]:
    """Return the lines of text about one handler or pipeline."""
    name = handler.name if handler.kind == "handler" else f"{handler.name} ({handler.kind})"
    lines = [f"{name}  {handler.distribution} {handler.version}  {handler.target}"]
    if handler.error is not None:
        return [*lines, f"  broken: {handler.error}"]
    lines += [f"  {handler.description}"] if handler.description else []
    if handler.options is None:
        return [*lines, f"  options: any, because the {handler.kind} has no model for them"]
    return [*lines, *(_option_line(option) for option in handler.options)]


def _option_line(option: OptionDescription) -> str:
    need = "required" if option.required else f"default {_as_yaml(option.default)}"
    described = f": {option.description}" if option.description else ""
    return f"  {option.name} ({option.type}, {need}){described}"


def _as_yaml(value: Any) -> str:
    import json

    return "none" if value is None else json.dumps(value, ensure_ascii=False)
