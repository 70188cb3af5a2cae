"""`rmqd top`: a live view of the running daemon; a snapshot without a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rmqd.cli.daemon_commands import Config, TokenFile, ask
from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.options import Http, Output
from rmqd.cli.terminal.output import say, say_json, table
from rmqd.errors import ExitCode


def top(
    config: Config = None,
    http: Http = None,
    token_file: TokenFile = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, max=60.0, help="Seconds between two queries of the daemon")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the groups once and end")] = False,
    output: Output = "table",
) -> None:
    """Watch the groups of the running daemon live: rates, lag, age, durations, retries and dead letters.

    Enter opens the queues of a group, p pauses and resumes (it asks first), d runs rmqd diagnose, / filters, < and >
    sort; ? lists all keys, q quits. If the daemon stops answering, the view waits for it. Without a terminal, or with
    --once, the list of groups is printed once.

    Example: rmqd top --http 127.0.0.1:9464
    """
    daemon, document = ask(config, http, token_file, lambda daemon: (daemon, daemon.status()))
    if output == "json":
        say_json(document)
        return
    try:
        lines = snapshot(document)
    except (KeyError, TypeError):
        fail(ExitCode.UNAVAILABLE, "rmqd: the server is not an rmqd of this version; -o json shows its response")
    if once or not _is_terminal():
        say(lines)
        return
    from rmqd.cli.top.top_screen import DaemonWatch, run

    run(DaemonWatch(daemon, document, _where(config, http), interval))


def snapshot(document: dict[str, Any]) -> list[str]:
    """Return the list of groups as lines, with every column."""
    from rmqd.cli.top.top_state import GROUP_COLUMNS
    from rmqd.runtime.plain_text import printable_values

    groups = printable_values(document)["groups"]
    rows = [[column.text(column.value(group)) for column in GROUP_COLUMNS] for group in groups]
    return table([column.title for column in GROUP_COLUMNS], rows)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _where(config: Path | None, http: str | None) -> list[str]:
    """Return the options that `rmqd diagnose` needs to find the cluster and the daemon."""
    given = (("--config", config), ("--http", http))
    return [word for option, value in given if value is not None for word in (option, str(value))]
