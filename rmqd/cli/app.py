"""The `rmqd` command: the options before the name of a command, and the common end of all commands."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.main import get_command

from rmqd.cli.terminal.command_list import COMMANDS
from rmqd.cli.terminal.commands import Commands, LoadedCommands
from rmqd.errors import ExitCode
from rmqd.runtime.kept_reload import KeptReload

HELP = """Run Apache RocketMQ consumer groups that are declared in YAML.

Start with: rmqd demo

All commands on one page: rmqd --man. More documentation: docs/ in the source of rmqd.
"""

_app = typer.Typer(
    name="rmqd",
    cls=Commands,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The entry point of the `rmqd` script and of `python -m rmqd`."""
    if sys.argv[1:2] in (["run"], ["_worker"]):  # SIGHUP would end the process while it imports the handlers
        signal.signal(signal.SIGHUP, KeptReload())
    _open_standard_streams()
    try:
        command_line()(prog_name="rmqd")
    except OSError as error:
        if not _is_of_output(error):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's remaining output at exit
        print(f"rmqd: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(ExitCode.FAILURE)


def command_line() -> Any:
    """Return the tree of all commands. Each is created on access."""
    root: Any = get_command(_app)
    root.commands = LoadedCommands(COMMANDS)
    return root


def _open_standard_streams() -> None:
    """Open standard streams that the parent process has closed.

    Otherwise a connection could get the file number of a closed stream, and receive all output to that stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115  kept until the end; it gets the stream's free number
            os.set_inheritable(stream.fileno(), True)  # commands that handlers start also write there
            setattr(sys, name, stream)


def _is_of_output(error: OSError) -> bool:
    """Return whether a command's output raised the error, for example on a full disk."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code is typer.echo.__code__


def _print_version(wanted: bool) -> None:
    if wanted:
        from rmqd.version import __version__

        typer.echo(f"rmqd {__version__}")
        raise typer.Exit


def _show_manual(context: typer.Context, wanted: bool) -> None:
    if wanted:
        from rmqd.cli.terminal.man import show_manual

        show_manual(context)
        raise typer.Exit


@_app.callback()
def rmqd(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    man: Annotated[
        bool,
        typer.Option("--man", help="Show the manual page; piped, its source.", callback=_show_manual, is_eager=True),
    ] = False,
) -> None:
    """The options before the name of a command."""
