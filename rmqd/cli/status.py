"""`rmqd status`: shows the groups and queues of the running daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rmqd.cli.cluster import fail
from rmqd.cli.control import Http, Output, ask, check_output, written_scope
from rmqd.cli.render import say_json, table
from rmqd.exit_codes import ExitCode
from rmqd.process.logs.printable import printable_values

HELP = "Example: rmqd status --http 127.0.0.1:9464 -o json"

_COLUMNS = ("topic", "broker", "queue", "state", "committed", "max", "lag", "lag_seconds", "cached")


def status(
    group: Annotated[str | None, typer.Argument(help="Only this group")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration with daemon address")] = None,
    http: Http = None,
    output: Output = "table",
) -> None:
    """Show the groups and queues of the running daemon, once."""
    check_output(output)
    document = ask(config, http, None, lambda daemon: daemon.status())
    if group is not None:
        document["groups"] = [one for one in document["groups"] if one.get("name") == group]
        if not document["groups"]:
            fail(ExitCode.FAILURE, f"rmqd: the daemon has no group {group}")
    if output == "json":
        say_json(document)
        return
    try:
        lines = status_lines(printable_values(document))
    except (KeyError, TypeError, AttributeError):
        fail(ExitCode.UNAVAILABLE, "rmqd: the server is not an rmqd of this version; -o json shows its response")
    typer.echo("\n".join(lines))


def status_lines(document: dict[str, Any]) -> list[str]:
    """Return the document of /api/v1/status as lines of text."""
    from rmqd.daemon.http.status_text import (
        cell,
        is_alarming,
        last_error_line,
        left_out_line,
        problem_line,
        rates_line,
        slave_lines,
        stall_lines,
        state_text,
    )

    workers = document.get("workers")
    columns = _COLUMNS if workers is None else (*_COLUMNS, "worker")
    lines = [f"rmqd {document['version']}  client {document['client_id'] or f'{len(workers or ())} workers'}"]
    lines += [f"  {problem}" for problem in document.get("problems", [])]
    for group in document["groups"]:
        model = ", broadcasting" if group["message_model"] == "broadcasting" else ""
        engine = ", on Spark" if group["engine"] == "spark" else ""
        cluster = f", on {group['cluster']}" if group.get("cluster") not in (None, "default") else ""
        head = f"{group['name']}  {state_text(group)}{model}{engine}{cluster}"
        lines += ["", _in_red(head) if is_alarming(group) else head]
        reason = group["failure"] or group["not_ready_reason"]
        lines += [f"  {reason}"] if reason else []
        lines.append(f"  {rates_line(group)}")
        error = last_error_line(group)
        lines += [f"  {_in_red(error)}"] if error else []
        left_out = left_out_line(group)
        lines += [f"  {left_out}"] if left_out else []
        lines += [f"  paused: {text}" for scope in group["pauses"] if (text := written_scope(scope))]
        lines += [f"  {problem_line(problem)}" for problem in group["problems"]]
        lines += [f"  {line}" for line in stall_lines(group["queues"])]
        lines += [f"  {line}" for line in slave_lines(group["queues"])]
        lines += _table(columns, [[cell(queue, column) for column in columns] for queue in group["queues"]])
    return lines


def _in_red(text: str) -> str:
    """Return the text in red. Typer removes the colour if the output is not a terminal."""
    return typer.style(text, fg=typer.colors.RED)


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    if not rows:
        return ["  no queues assigned to this daemon"]
    return [f"  {line}" for line in table(columns, rows)]
