"""The `rmqd` command. It lists all commands, and shows their list without importing what they need to run."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.main import get_command

from rmqd.cli import (
    broker,
    check,
    control,
    demo,
    diagnose,
    dlq,
    groups,
    handlers,
    lag,
    message,
    offsets,
    replay,
    run,
    schema,
    send,
    spark,
    status,
    tail,
    test,
    topics,
    try_group,
    worker,
)
from rmqd.cli.commands import adapted
from rmqd.cli.top import command as top
from rmqd.exit_codes import ExitCode

HELP = """Run Apache RocketMQ consumer groups that are declared in YAML.

Begin with: rmqd demo

All commands on one page: rmqd --man. What stands behind them: docs/ in the source of rmqd.
"""

app = typer.Typer(
    name="rmqd",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("demo", help=demo.HELP)(demo.demo)
app.command("run", help=run.HELP)(run.run)
app.command("check", help=check.HELP)(check.check)
app.command("schema", help=schema.HELP)(schema.schema)
app.command("handlers", help=handlers.HELP)(handlers.handlers)
app.command("test", help=test.HELP)(test.run_cases)
app.command("status", help=status.HELP)(status.status)
app.command("top", help=top.HELP)(top.top)
app.command("lag", help=lag.HELP)(lag.lag)
app.command("diagnose", help=diagnose.HELP)(diagnose.diagnose)
app.add_typer(groups.app, name="groups", help=groups.HELP)
app.add_typer(topics.app, name="topics", help=topics.HELP)
app.add_typer(offsets.app, name="offsets", help=offsets.HELP)
app.add_typer(dlq.app, name="dlq", help=dlq.HELP)
app.command("try", help=try_group.HELP)(try_group.try_group)
app.command("replay", help=replay.HELP)(replay.replay)
app.command("tail", help=tail.HELP)(tail.tail)
app.add_typer(message.app, name="message", help=message.HELP)
app.command("send", help=send.HELP)(send.send)
app.command("pause", help=control.PAUSE_HELP)(control.pause)
app.command("resume", help=control.RESUME_HELP)(control.resume)
app.command("reload", help=control.RELOAD_HELP)(control.reload)
app.command("broker", help=broker.HELP)(broker.broker)
app.add_typer(spark.app, name="spark", help=spark.HELP)
app.command("_worker", hidden=True)(worker.worker)


def main() -> None:
    """The entry point of the `rmqd` script and of `python -m rmqd`."""
    _open_standard_streams()
    try:
        command_line()(prog_name="rmqd")
    except OSError as error:
        if not _is_of_output(error):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what it did not take Python writes as it ends
        print(f"rmqd: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(ExitCode.FAILURE)


def command_line() -> Any:
    """The tree of all commands."""
    return adapted(get_command(app))


def _open_standard_streams() -> None:
    """Open standard streams that the starting process has closed.

    Otherwise a connection could get the number of a closed stream, and then everything that is written to the stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115  kept until the end; it takes the lowest number, this one's
            os.set_inheritable(stream.fileno(), True)  # commands that handlers start write there too
            setattr(sys, name, stream)


def _is_of_output(error: OSError) -> bool:
    """Whether it was raised by what commands print with, as on a full disk."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code is typer.echo.__code__


def _print_version(wanted: bool) -> None:
    if wanted:
        from rmqd import __version__

        typer.echo(f"rmqd {__version__}")
        raise typer.Exit


def _show_manual(context: typer.Context, wanted: bool) -> None:
    if wanted:
        from rmqd.cli.man import show_manual

        show_manual(context)
        raise typer.Exit


@app.callback()
def rmqd(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    man: Annotated[
        bool,
        typer.Option("--man", help="Show the manual page; piped, its source.", callback=_show_manual, is_eager=True),
    ] = False,
) -> None:
    """What comes before a command."""
