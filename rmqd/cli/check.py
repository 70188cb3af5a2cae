"""`rmqd check`: whether a configuration and its handlers are right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rmqd.cli.connect import Check
    from rmqd.daemon.config import RootConfig

HELP = """Check a configuration and its handlers; nothing is connected to unless --connect says so.

Every problem is one line on standard error, FILE:LINE:COLUMN: KEY: what is wrong, and what is accepted; then the
command exits with 78. Handlers are imported and made with their options, but not started.

With --connect the cluster is asked too: whether name servers and brokers answer, topics exist and may be read, the
group may consume, brokers take the SQL filters, and other members of the group subscribe to the same. It looks only,
and joins no group. Exit 1 where something does not agree, 69 where something does not answer.

Example: rmqd check --config /etc/rmqd/rmqd.yaml --connect
"""


def check(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="File or folder; default: $RMQD_CONFIG, config/rmqd.yaml, /etc/rmqd"),
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override a value, as a.b=c; repeatable")] = None,
    connect: Annotated[bool, typer.Option("--connect", help="Ask the cluster whether it agrees, too")] = False,
    output: Annotated[str, typer.Option("-o", "--output", help="table or json")] = "table",
) -> None:
    """Check a configuration and its handlers; with --connect whether the cluster agrees, too."""
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
    checks: list[Check] = []
    code = ExitCode.OK if checked is not None else ExitCode.CONFIG
    if connect and checked is not None:
        from rmqd.cli.connect import check_cluster, exit_code

        checks = check_cluster(checked)
        code = exit_code(checks)
    if output == "json":
        import json

        document = _document(checked, problems)
        if connect:
            document |= {"ok": code == ExitCode.OK, "checks": [found.document() for found in checks]}
        typer.echo(json.dumps(document, indent=2))
    elif checked is not None:
        typer.echo("\n".join([*_ok_lines(checked), *(found.line() for found in checks)]))
    for problem in problems:
        typer.echo(str(problem), err=True)
    if code != ExitCode.OK:
        raise typer.Exit(code)


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
