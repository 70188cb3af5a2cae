"""The `rmqd` program: the command tree, the options `--version` and `--man`, and errors in writing the output."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from typer.main import get_command

from rmqd.cli.terminal.commands import Command, Commands
from rmqd.errors import ExitCode

_PACKAGE: Final = Path(__file__).parents[1]
DOCS: Final = next((one for one in (_PACKAGE / "docs", _PACKAGE.parent / "docs") if one.is_dir()), "rmqd's source")
HELP = f"""Run Apache RocketMQ consumer groups that are declared in YAML.

Start with: rmqd demo

All commands on one page: rmqd --man. More documentation: {DOCS}
"""

COMMANDS: Final = {
    "demo": "broker_commands:demo",
    "run": "run_command:run",
    "dev": "run_command:dev",
    "check": "check_command:check",
    "schema": "config_commands:schema",
    "convert": "config_commands:convert",
    "handlers": "handler_commands:handlers",
    "new handler": "handler_commands:new_handler",
    "test": "test_command:run_cases",
    "status": "daemon_commands:status",
    "top": "daemon_commands:top",
    "lag": "group_commands:lag",
    "diagnose": "diagnose_command:diagnose",
    "groups list": "group_commands:list_groups",
    "groups show": "group_commands:show_group",
    "groups mode": "group_commands:set_mode",
    "topics list": "topic_commands:list_topics",
    "topics show": "topic_commands:show_topic",
    "offsets show": "offset_commands:show",
    "offsets reset": "offset_commands:reset",
    "offsets restore": "offset_commands:restore",
    "dlq list": "dlq:list_dead_letters",
    "dlq show": "dlq:show",
    "dlq replay": "dlq:replay",
    "dlq purge": "dlq:purge",
    "try": "try_command:try_group",
    "replay": "replay_command:replay",
    "tail": "message_commands:tail",
    "message get": "message_commands:get",
    "message trace": "message_commands:trace",
    "message query": "message_commands:query",
    "send": "send_command:send",
    "pause": "daemon_commands:pause",
    "resume": "daemon_commands:resume",
    "concurrency": "daemon_commands:concurrency",
    "canary": "daemon_commands:canary",
    "restart": "daemon_commands:restart",
    "reload": "daemon_commands:reload",
    "broker": "broker_commands:broker",
    "spark run": "spark_commands:run",
    "spark submit": "spark_commands:submit",
    "spark compact": "spark_commands:compact",
    "spark pack": "spark_commands:pack",
    "_worker": "run_command:worker",
}
"""The function that implements each command, as `module:function`. The modules are in `rmqd.cli`."""
_FIRST_WORDS: Final = {
    "new": "Create a project.\n\nExample: rmqd new handler order-book",
    "groups": (
        "Show the consumer groups of a cluster, of any client, and set whether they pop or pull.\n\n"
        "Example: rmqd groups show order-mailer"
    ),
    "topics": "Show the topics of a cluster.\n\nExample: rmqd topics show orders",
    "offsets": "Show a group's offsets, and reset them.\n\nExample: rmqd offsets show order-mailer orders",
    "dlq": (
        "Show, replay and purge dead letters: messages that a group could not handle.\n\n"
        "Example: rmqd dlq show order-mailer"
    ),
    "message": "Show single messages of a cluster.\n\nExample: rmqd message query orders order-4711",
    "spark": (
        "Run groups with engine: spark without the daemon.\n\n"
        "rmqd run runs them with all other groups; these commands run a single group.\n\n"
        "Example: rmqd spark submit orders --master spark://spark-1:7077"
    ),
}
"""The help text of each first word that several commands share, such as `groups`."""


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
    """Run the command line. Called by `rmqd.__main__.main`."""
    _open_standard_streams()
    try:
        command_line()(prog_name="rmqd")
    except OSError as error:
        if not _is_of_output(error):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that Python's flush at exit cannot fail
        print(f"rmqd: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(ExitCode.FAILURE)


def command_line() -> Commands:
    """Return the tree of all commands. A command's module is imported only when the command runs or shows its help."""
    root = get_command(_app)
    assert isinstance(root, Commands)
    parents = {"": root}
    for words, place in COMMANDS.items():
        first, _, name = words.rpartition(" ")
        if first not in parents:
            shared_help = _FIRST_WORDS[first]
            parents[first] = Commands(name=first, help=shared_help, no_args_is_help=True, rich_markup_mode=None)
            root.add_command(parents[first])
        parents[first].add_command(Command(name, place, hidden=name.startswith("_")))
    return root


def _open_standard_streams() -> None:
    """Open the standard streams that the parent closed, and let standard output escape characters it cannot encode.

    A connection could otherwise get the file descriptor of standard output, and would receive the program's output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115  stays open; it gets the closed stream's descriptor
            os.set_inheritable(stream.fileno(), True)  # processes that handlers start need the stream too
            setattr(sys, name, stream)
    cast(Any, sys.stdout).reconfigure(errors="backslashreplace")  # like stderr; encodings such as GBK lack letters


def _is_of_output(error: OSError) -> bool:
    """Return whether `typer.echo` raised the error: then the output cannot be written, for example to a full disk."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code is typer.echo.__code__


def _print_version(wanted: bool) -> None:
    if wanted:
        from rmqd.version import __version__
        from rmqd.wire.core import core_name

        typer.echo(f"rmqd {__version__} (core: {core_name()})")
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
