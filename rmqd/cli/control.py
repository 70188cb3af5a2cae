"""`rmqd pause`, `rmqd resume` and `rmqd reload`: changes in the running daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.cluster import Answer, fail
from rmqd.cli.render import say_json

if TYPE_CHECKING:
    from rmqd.cli.daemon_client import DaemonClient

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
    from rmqd.cli.daemon_client import DaemonRefusedError, DaemonUnreachableError, find_daemon
    from rmqd.errors import ConfigError
    from rmqd.exit_codes import ExitCode

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
