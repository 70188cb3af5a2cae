"""`rmqd check`: whether a configuration and its handlers are right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rmqd.daemon.config import RootConfig

HELP = """Check a configuration and its handlers; nothing is connected to.

Every problem is one line on standard error, FILE:LINE:COLUMN: KEY: what is wrong, and what is accepted; then the
command exits with 78. Handlers are imported and made with their options, but not started.

Example: rmqd check --config /etc/rmqd/rmqd.yaml
"""


def check(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="File or folder; default: $RMQD_CONFIG, config/rmqd.yaml, /etc/rmqd"),
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override a value, as a.b=c; repeatable")] = None,
    output: Annotated[str, typer.Option("-o", "--output", help="table or json")] = "table",
) -> None:
    """Check a configuration and its handlers without connecting to anything."""
    from rmqd.cli.control import check_output
    from rmqd.errors import ConfigError
    from rmqd.exit_codes import ExitCode

    check_output(output)
    checked: RootConfig | None = None
    problems: list[object] = []
    try:
        checked = _checked(config, overrides or [])
    except ConfigError as error:
        problems = list(error.problems)
    if output == "json":
        import json

        typer.echo(json.dumps(_document(checked, problems), indent=2))
    elif checked is not None:
        typer.echo("\n".join(_ok_lines(checked)))
    for problem in problems:
        typer.echo(str(problem), err=True)
    if problems:
        raise typer.Exit(ExitCode.CONFIG)


def _checked(path: Path | None, overrides: list[str]) -> RootConfig:
    """The configuration, its handlers made and thrown away. Raises ConfigError with all problems."""
    from rmqd.daemon.config_file import load_config
    from rmqd.daemon.handler_registry import load_handler
    from rmqd.errors import ConfigError

    config = load_config(path, overrides)
    problems: list[object] = []
    for name, group in config.groups.items():
        try:
            load_handler(name, group)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return config


def _ok_lines(config: RootConfig) -> list[str]:
    servers = ";".join(config.nameserver) or config.nameserver_url
    lines = [f"OK  nameserver {servers}"]
    for name, group in config.groups.items():
        topics = ", ".join(f"{topic} ({wanted.expression})" for topic, wanted in group.subscriptions.items())
        plugin = group.handler.plugin if group.handler else group.engine
        lines.append(f"OK  {name}: {topics} to handler {plugin}")
    return lines


def _document(config: RootConfig | None, problems: list[object]) -> dict[str, Any]:
    from rmqd.daemon.config_problems import Problem, path_text

    return {
        "ok": config is not None,
        "groups": list(config.groups) if config is not None else [],
        "problems": [
            {"place": problem.place, "key": path_text(problem.path), "message": problem.message}
            if isinstance(problem, Problem)
            else {"place": "", "key": "", "message": str(problem)}
            for problem in problems
        ],
    }
