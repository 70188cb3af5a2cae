"""The commands that run the daemon, show its state, and change it while it runs.

`rmqd run`: runs the daemon, which consumes all groups of a configuration.

`rmqd _worker`: the hidden command of the processes that `rmqd run --workers N` starts.

`rmqd pause`, `rmqd resume` and `rmqd reload`: changes in the running daemon.

`rmqd status`: shows the groups and queues of the running daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.terminal.cluster_command import Answer, ConfigPath, Overrides, fail
from rmqd.cli.terminal.output import say_json, table
from rmqd.errors import ExitCode
from rmqd.runtime.plain_text import printable_values

if TYPE_CHECKING:
    from rmqd.cli.terminal.daemon_client import DaemonClient


RUN_HELP = """\
SIGTERM or SIGINT drains and exits with 0; a second one ends the drain at once and exits with 128 + its number.
SIGHUP reloads the configuration; an invalid one changes nothing.

With --reload each group runs in its own process, which drains and is replaced when a file of its handler's package
changes. If the changed code cannot be imported, the group pauses, and the log shows the error, until it is fixed.

Example: rmqd run --config /etc/rmqd/rmqd.yaml --set log.level=debug --group order-mailer
"""


def run(
    config: ConfigPath = None,
    overrides: Overrides = None,
    groups: Annotated[list[str] | None, typer.Option("--group", help="Run only this group; repeatable")] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="Processes that share the groups' queues")
    ] = 1,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="For development: restart a group when files of its handler change"),
    ] = False,
) -> None:
    """Run the consumer groups of a configuration until a signal."""
    from rmqd.runtime.event_loop import leave, put_off_garbage_collection

    put_off_garbage_collection()
    if reload:
        write_no_bytecode()

    from rmqd.daemon.daemon import RunOptions, run_daemon

    options = RunOptions(config, tuple(overrides or ()), tuple(groups or ()), workers, reload)
    leave(run_daemon(options))


def write_no_bytecode() -> None:
    """Do not let this process and its workers write compiled modules.

    Python mistakes one for its source if the source has the same size and was written in the same second, even if
    edited.
    """
    import os
    import sys

    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


WORKER_HELP = "Only rmqd run can start it."


def worker(descriptor: Annotated[int, typer.Argument(help="The inherited socket to the parent")]) -> None:
    """Serve the parent process at the other end of an inherited socket."""
    from rmqd.runtime.event_loop import leave, put_off_garbage_collection

    put_off_garbage_collection()

    from rmqd.daemon.workers.worker_main import run_worker

    leave(run_worker(descriptor))


PAUSE_HELP = """\
--topic, --broker and --queue restrict the pause to queues that match all of them. The pause lasts in this daemon until
a resume or the daemon's end. If such a queue moves to another member, that member consumes it.

Example: rmqd pause order-mailer --topic orders --broker broker-a --queue 3
"""
RESUME_HELP = "Example: rmqd resume order-mailer"
CONCURRENCY_HELP = """\
More calls start at once; a lower number takes effect as running calls end. The change lasts until the next reload or
the daemon's end. For a permanent change set handler.concurrency in the configuration.

Example: rmqd concurrency order-mailer 40
"""
RELOAD_HELP = "Example: rmqd reload --config /etc/rmqd/rmqd.yaml"

Group = Annotated[str, typer.Argument(help="The group's name")]
Topic = Annotated[str | None, typer.Option("--topic", help="Only queues of this topic")]
Broker = Annotated[str | None, typer.Option("--broker", help="Only queues on this broker, by its name")]
Queue = Annotated[int | None, typer.Option("--queue", min=0, help="Only queues with this id")]
Config = Annotated[Path | None, typer.Option("--config", "-c", help="Configuration with daemon address and token")]
Http = Annotated[
    str | None, typer.Option("--http", metavar="ADDRESS", help="The daemon's address, as 127.0.0.1:9464 or a URL")
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with the daemon's token; default: the configuration's"),
]
Output = Annotated[str, typer.Option("-o", "--output", help="table or json")]


def pause(
    group: Group,
    topic: Topic = None,
    broker: Broker = None,
    queue: Queue = None,
    config: Config = None,
    http: Http = None,
    token_file: TokenFile = None,
    output: Output = "table",
) -> None:
    """Pause a group of the running daemon, or some queues of it."""
    check_output(output)
    report = ask(config, http, token_file, lambda daemon: daemon.switch("pause", group, topic, broker, queue))
    _print_report(report, output, outcome_text(report))


def resume(
    group: Group,
    topic: Topic = None,
    broker: Broker = None,
    queue: Queue = None,
    config: Config = None,
    http: Http = None,
    token_file: TokenFile = None,
    output: Output = "table",
) -> None:
    """Resume a paused group of the running daemon, or some of its queues."""
    check_output(output)
    report = ask(config, http, token_file, lambda daemon: daemon.switch("resume", group, topic, broker, queue))
    _print_report(report, output, outcome_text(report))


def concurrency(
    group: Group,
    calls: Annotated[str, typer.Argument(metavar="N", help="Batches handled at once, 1 to 1000, or auto")],
    config: Config = None,
    http: Http = None,
    token_file: TokenFile = None,
    output: Output = "table",
) -> None:
    """Change the number of batches that a group of the running daemon handles at once."""
    check_output(output)
    report = ask(config, http, token_file, lambda daemon: daemon.change_concurrency(group, calls))
    number = "an automatic number of calls at once" if calls == "auto" else f"up to {calls} calls at once"
    _print_report(report, output, f"{group} makes {number}, until the next reload")


def reload(config: Config = None, http: Http = None, token_file: TokenFile = None, output: Output = "table") -> None:
    """Reload the configuration of the running daemon."""
    check_output(output)
    report = ask(config, http, token_file, lambda daemon: daemon.reload())
    names = ("unchanged", "updated", "restarted", "started", "stopped")
    done = "; ".join(f"{name}: {', '.join(report[name])}" for name in names if report.get(name))
    _print_report(report, output, f"the configuration was applied ({done or 'no groups'})")


def outcome_text(report: dict[str, Any]) -> str:
    """Return the outcome of a pause or a resume as text."""
    return _paused(report) if report["result"] == "paused" else _resumed(report)


def _paused(report: dict[str, Any]) -> str:
    """Return the outcome of a pause as text. It mentions a scope without queues, which may be a typing error."""
    scope = written_scope(report["scope"])
    if not scope:
        return f"{report['group']} is paused"
    if not report["queues"]:
        return f"{report['group']}: {scope} is paused; the daemon has no such queue now, and will not consume one"
    return f"{report['group']}: {scope} is paused ({report['queues']} of the daemon's queues)"


def _resumed(report: dict[str, Any]) -> str:
    scope = written_scope(report["scope"])
    still = "; ".join(written_scope(pause) or "the whole group" for pause in report["pauses"])
    line = f"{report['group']}: {scope} is resumed" if scope else f"{report['group']} is resumed"
    return f"{line}; still paused: {still}" if still else line


def written_scope(scope: dict[str, Any]) -> str:
    """Return the given parts of a pause's scope; empty for the whole group."""
    return ", ".join(f"{name} {value}" for name, value in scope.items() if value is not None)


def ask(
    config: Path | None,
    http: str | None,
    token_file: Path | None,
    question: Callable[[DaemonClient], Answer],
) -> Answer:
    """Return the running daemon's response. Ends the command with the documented exit code if there is none."""
    from rmqd.cli.terminal.daemon_client import DaemonRefusedError, DaemonUnreachableError, find_daemon
    from rmqd.errors import ConfigError, ExitCode

    try:
        return question(find_daemon(http, config, token_file=token_file))
    except ConfigError as error:
        fail(ExitCode.CONFIG, problems=map(str, error.problems))
    except DaemonUnreachableError as error:
        fail(ExitCode.UNAVAILABLE, f"rmqd: {error}; start it, or give its address with --http or --config")
    except DaemonRefusedError as error:
        code = ExitCode.CONFIG if error.problems else ExitCode.FAILURE
        fail(code, f"rmqd: {error}", problems=error.problems)


def check_output(output: str) -> None:
    """End the command with a usage error if the format is unknown."""
    if output not in ("table", "json"):
        raise typer.BadParameter(f"unknown format {output}; expected table or json", param_hint="-o")


def _print_report(document: dict[str, Any], output: str, text: str) -> None:
    if output == "json":
        say_json(document)
    else:
        typer.echo(text)


STATUS_HELP = "Example: rmqd status --http 127.0.0.1:9464 -o json"

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
    from rmqd.daemon.http.daemon_status import (
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
