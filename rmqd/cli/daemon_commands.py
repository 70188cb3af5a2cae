"""The commands that show or change the running daemon, such as `rmqd status`, `top`, `pause` and `reload`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.daemon_client import DaemonClient, DaemonRefusedError, DaemonUnreachableError, find_daemon
from rmqd.cli.terminal.options import GroupName, Http, Output, checked_value, group_names, topic_names
from rmqd.cli.terminal.output import Answer, add_command_options, count, say, say_json, table
from rmqd.daemon.http import status_view
from rmqd.errors import ConfigError, ConfigMissingError, ExitCode
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.runtime.plain_text import printable_values

with import_lazily():
    from rmqd.config.model import group_model

Config = Annotated[Path | None, typer.Option("--config", "-c", help="Configuration with daemon address and token")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File with the daemon's token; default: the configuration's")
]


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """The options of commands that change the running daemon."""

    config: Config = None
    http: Http = None
    token_file: TokenFile = None
    output: Output = "table"

    def ask(self, question: Callable[[DaemonClient], Answer]) -> Answer:
        """Return the result of `question`, called with a client for the daemon.

        Ends the command with 69 if the daemon is unreachable, or if nothing names a daemon. If the daemon refuses
        because its configuration is wrong, ends it with 78; after another refusal with 1.
        """
        try:
            return question(find_daemon(self.http, self.config, token_file=self.token_file))
        except ConfigMissingError as error:
            fail(ExitCode.UNAVAILABLE, f"rmqd: no daemon is known: {error}, or the daemon with --http HOST:PORT")
        except ConfigError as error:
            if self.http is not None or self.token_file is not None:
                raise
            raise ConfigError([*error.problems, "or ask the running daemon directly: --http HOST:PORT"]) from error
        except DaemonUnreachableError as error:
            fail(ExitCode.UNAVAILABLE, f"rmqd: {error}; start it, or give its address with --http or --config")
        except DaemonRefusedError as error:
            code = ExitCode.CONFIG if error.problems else ExitCode.FAILURE
            fail(code, f"rmqd: {error}", problems=error.problems)

    def say(self, report: dict[str, Any], text: str) -> None:
        """Print the daemon's report with `-o json`, otherwise the text."""
        if self.output == "json":
            say_json(report)
        else:
            typer.echo(text)


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The options that select queues of a group."""

    topic: Annotated[
        str | None, typer.Option("--topic", help="Only queues of this topic", autocompletion=topic_names)
    ] = None
    broker: Annotated[str | None, typer.Option("--broker", help="Only queues on this broker, by its name")] = None
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Only queues with this id")] = None


def pause(queues: QueueOptions, daemon: DaemonOptions, group: GroupName) -> None:
    """Pause a group of the running daemon: it keeps its queues, stops pulling, and finishes its messages.

    --topic, --broker and --queue restrict the pause to queues that match all of them. The pause lasts in this daemon
    until a resume or the daemon's end. If such a queue moves to another member, that member consumes it.

    Example: rmqd pause order-mailer --topic orders --broker broker-a --queue 3
    """
    report = daemon.ask(
        lambda client: client.pause_or_resume("pause", group, queues.topic, queues.broker, queues.queue)
    )
    daemon.say(report, status_view.outcome_text(report))


def resume(queues: QueueOptions, daemon: DaemonOptions, group: GroupName) -> None:
    """Resume a paused group of the running daemon, or some of its queues.

    Example: rmqd resume order-mailer
    """
    report = daemon.ask(
        lambda client: client.pause_or_resume("resume", group, queues.topic, queues.broker, queues.queue)
    )
    daemon.say(report, status_view.outcome_text(report))


def concurrency(
    daemon: DaemonOptions,
    group: GroupName,
    calls: Annotated[str, typer.Argument(metavar="N", help="Batches handled at once, 1 to 1000, or auto")],
) -> None:
    """Change the number of batches that a group of the running daemon handles at once.

    More calls start at once; a lower number takes effect as running calls end. The change lasts until the next reload
    or the daemon's end. For a permanent change set handler.concurrency in the configuration.

    Example: rmqd concurrency order-mailer 40
    """
    checked_value(group_model.CONCURRENCY, int(calls) if calls.isdecimal() and len(calls) < 9 else calls, "N")
    report = daemon.ask(lambda client: client.change(group, "concurrency", calls=calls))
    number = "an automatic number of calls at once" if calls == "auto" else f"up to {calls} calls at once"
    daemon.say(report, f"{group} makes {number}, until the next reload")


def canary(
    daemon: DaemonOptions,
    group: GroupName,
    share: Annotated[str | None, typer.Option("--share", metavar="N", help="Percentage of keys, 0% to 100%")] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Make the canary the only handler")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Give the canary no more messages")] = False,
) -> None:
    """Change or end the canary of a group of the running daemon, until the next reload.

    --share and --stop take effect at once. With --promote, the group drains, and starts again with the canary as its
    only handler. For a permanent change, edit handler.canary in the configuration; rmqd status shows the canary.

    Example: rmqd canary order-mailer --share 10%
    """
    if [share is not None, promote, stop].count(True) != 1:
        raise typer.BadParameter("expected one of --share, --promote and --stop")
    wanted = "0%" if stop else None if share is None else f"{share.removesuffix('%')}%"
    if wanted is not None:
        checked_value(group_model.Percentage(), wanted, "--share")
    report = daemon.ask(lambda client: client.change(group, "canary", share=wanted))
    if promote:
        text = f"the canary is the only handler of {group}"
        todo = "make it handler.plugin in the configuration and remove handler.canary"
    elif stop:
        text, todo = f"the canary of {group} gets no more messages", "remove handler.canary from the configuration"
    else:
        text, todo = f"the canary of {group} gets {wanted} of the messages", "set handler.canary.share too"
    daemon.say(report, f"{text}, until the next reload or start of the daemon; {todo}")


def restart(daemon: DaemonOptions, group: GroupName) -> None:
    """Load the code of a group of the running daemon again, without touching other groups.

    A new process imports the code. Then the group finishes and commits its batches, and continues in that process. If
    the code cannot be loaded, the old code continues, and the command prints the problems and exits with 78. The
    configuration is not read again: use rmqd reload for that.

    Example: rmqd restart order-mailer
    """
    report = daemon.ask(lambda client: client.change(group, "restart"))
    daemon.say(report, f"{group} runs its new code, in a process of its own; no other group was touched")


def reload(daemon: DaemonOptions) -> None:
    """Reload the configuration of the running daemon; an invalid one changes nothing and exits with 78.

    Example: rmqd reload --config /etc/rmqd/rmqd.yaml
    """
    report = daemon.ask(lambda client: client.reload())
    names = ("unchanged", "updated", "restarted", "started", "stopped")
    done = "; ".join(f"{name}: {', '.join(report[name])}" for name in names if report.get(name))
    daemon.say(report, f"the configuration was applied ({done or 'no groups'})")


def status(
    group: Annotated[str | None, typer.Argument(help="Only this group", autocompletion=group_names)] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration with daemon address")] = None,
    http: Http = None,
    output: Output = "table",
) -> None:
    """Show the groups and queues of the running daemon, once.

    Example: rmqd status --http 127.0.0.1:9464 -o json
    """
    document = DaemonOptions(config, http).ask(lambda client: client.status())
    if group is not None:
        document["groups"] = [one for one in document["groups"] if one.get("name") == group]
        if not document["groups"]:
            fail(ExitCode.FAILURE, f"rmqd: the daemon has no group {group}")
    if output == "json":
        say_json(document)
        return

    def lines(document: dict[str, Any]) -> list[str]:
        for one in document["groups"]:
            for problem in (*one["problems"], *filter(None, (queue["stall"] for queue in one["queues"]))):
                problem["next"] = add_command_options(problem["next"], config, http)
        return status_lines(document)

    typer.echo("\n".join(_lines(lines, document)))


def _lines(of: Callable[[dict[str, Any]], list[str]], document: dict[str, Any]) -> list[str]:
    try:
        return of(printable_values(document))
    except (KeyError, TypeError, AttributeError):
        fail(ExitCode.UNAVAILABLE, "rmqd: the server is not an rmqd of this version; -o json shows its response")


def status_lines(document: dict[str, Any]) -> list[str]:
    """Return the output of `rmqd status`: the document of /api/v1/status as lines of text."""
    workers = document.get("workers")
    columns = [column.key for column in status_view.QUEUE_COLUMNS if column.key != "worker" or workers is not None]
    client_id = document["client_id"]
    lines = [
        f"rmqd {document['version']}  {f'client {client_id}' if client_id else count(len(workers or ()), 'worker')}"
    ]
    lines += [f"  {problem}" for problem in document.get("problems", [])]
    for group in document["groups"]:
        model = ", broadcasting" if group["message_model"] == "broadcasting" else ""
        engine = ", on Spark" if group["engine"] == "spark" else ""
        cluster = f", on {group['cluster']}" if group.get("cluster") not in (None, "default") else ""
        head = f"{group['name']}  {status_view.state_text(group)}{model}{engine}{cluster}"
        lines += ["", _in_red(head) if status_view.is_alarming(group) else head]
        error = status_view.last_error_line(group)
        below = [
            group["failure"] or group["not_ready_reason"],
            status_view.rates_line(group),
            error and _in_red(error),
            status_view.canary_line(group),
            status_view.skipped_line(group),
            *(f"paused: {text}" for scope in group["pauses"] if (text := status_view.written_scope(scope))),
            *map(status_view.problem_line, group["problems"]),
            *status_view.stall_lines(group["queues"]),
            *status_view.slave_lines(group["queues"]),
        ]
        rows = [[status_view.cell(queue, column) for column in columns] for queue in group["queues"]]
        below += table(columns, rows) if rows else ["no queues assigned to this daemon"]
        lines += [f"  {line}" for line in below if line]
    return lines


def _in_red(text: str) -> str:
    """Return the text in red. `typer.echo` removes the colour if the output is not a terminal."""
    return typer.style(text, fg=typer.colors.RED)


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
    daemon, document = DaemonOptions(config, http, token_file).ask(lambda client: (client, client.status()))
    if output == "json":
        say_json(document)
        return
    lines = _lines(top_lines, document)
    if once or not _is_terminal():
        say(lines)
        return
    from rmqd.cli.top.top_screen import DaemonWatch, run

    run(DaemonWatch(daemon, document, _where(config, http), interval))


def top_lines(document: dict[str, Any]) -> list[str]:
    """Return the table that `rmqd top --once` prints: one line for each group, with every column."""
    rows = [[column.cell(group) for column in status_view.GROUP_COLUMNS] for group in document["groups"]]
    return table([column.title for column in status_view.GROUP_COLUMNS], rows)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _where(config: Path | None, http: str | None) -> list[str]:
    """Return options that make `rmqd diagnose` find the same cluster and daemon."""
    given = (("--config", config), ("--http", http))
    return [word for option, value in given if value is not None for word in (option, str(value))]
