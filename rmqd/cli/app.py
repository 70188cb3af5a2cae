"""The `rmqd` command: the options before the name of a command, and the common end of all commands."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from typer.main import get_command

from rmqd.cli.terminal.commands import Command, Commands
from rmqd.errors import ExitCode
from rmqd.runtime.kept_reload import KeptReload

_PACKAGE: Final = Path(__file__).parents[1]
DOCS: Final = next((one for one in (_PACKAGE / "docs", _PACKAGE.parent / "docs") if one.is_dir()), "rmqd's source")
HELP = f"""Run Apache RocketMQ consumer groups that are declared in YAML.

Start with: rmqd demo

All commands on one page: rmqd --man. More documentation: {DOCS}
"""

COMMANDS: Final[dict[str, str | tuple[str, str]]] = {
    "demo": (
        "broker_commands:demo",
        "Run a RocketMQ, a producer of orders and a consumer group in this process, and watch them.",
    ),
    "run": ("run_command:run", "Run the consumer groups of a configuration until a signal."),
    "dev": (
        "run_command:dev",
        "Run the groups of a configuration for development, with a RocketMQ and a prompt to send messages.",
    ),
    "check": ("check_command:check", "Check a configuration and its handlers; with --connect also the cluster."),
    "schema": ("config_commands:schema", "Print the JSON Schema of the configuration."),
    "convert": (
        "config_commands:convert",
        "Print the settings of a Java client or of Spring's RocketMQ starter as an rmqd configuration.",
    ),
    "handlers": ("handler_commands:handlers", "List the installed handlers and pipelines, and their options."),
    "new": "Create a project.\n\nExample: rmqd new handler order-book",
    "new handler": (
        "handler_commands:new_handler",
        "Create a project with a typed handler, its tests and its configuration.",
    ),
    "test": (
        "test_command:run_cases",
        "Run cases written in YAML: messages for a handler, and their expected outcomes.",
    ),
    "status": ("daemon_commands:status", "Show the groups and queues of the running daemon, once."),
    "top": (
        "daemon_commands:top",
        "Watch the groups of the running daemon live: rates, lag, age, durations, retries and dead letters.",
    ),
    "lag": ("group_commands:lag", "Show the lag of groups: the number of waiting messages, and the age of the oldest."),
    "diagnose": (
        "diagnose_command:diagnose",
        "Explain why a group lags or does not consume: the most likely cause first, with evidence and next steps.",
    ),
    "groups": (
        "Show the consumer groups of a cluster, of any client, and set whether they pop or pull.\n\n"
        "Example: rmqd groups show order-mailer"
    ),
    "groups list": (
        "group_commands:list_groups",
        "List the groups of a cluster with their members, consumption mode and lag.",
    ),
    "groups show": (
        "group_commands:show_group",
        "Show one group: its members, subscriptions, the owner of each queue, and its settings on brokers.",
    ),
    "groups mode": (
        "group_commands:set_mode",
        "Set whether a group pops or pulls a topic, on all brokers of the topic, like mqadmin setConsumeMode.",
    ),
    "topics": "Show the topics of a cluster.\n\nExample: rmqd topics show orders",
    "topics list": (
        "topic_commands:list_topics",
        "List the topics of a cluster: their queues, permissions, types and brokers.",
    ),
    "topics show": (
        "topic_commands:show_topic",
        "Show one topic: its queues with first and last offsets, the groups that read it, and its settings.",
    ),
    "offsets": "Show a group's offsets, and reset them.\n\nExample: rmqd offsets show order-mailer orders",
    "offsets show": (
        "offset_commands:show",
        "Show a group's committed offset in each queue, and the ends of the queue.",
    ),
    "offsets reset": ("offset_commands:reset", "Reset a group's offsets in a topic, even while its members run."),
    "offsets restore": (
        "offset_commands:restore",
        "Reset a group to the offsets in a backup that `rmqd offsets reset` has written.",
    ),
    "dlq": (
        "Show, replay and purge dead letters: messages that a group could not handle.\n\n"
        "Example: rmqd dlq show order-mailer"
    ),
    "dlq list": (
        "dlq:list_dead_letters",
        "List the groups with dead letters: the number left, the number stored, and the time of the last one.",
    ),
    "dlq show": (
        "dlq:show",
        "Show the newest unsettled dead letters of a group, oldest first, with the topic of each.",
    ),
    "dlq replay": ("dlq:replay", "Replay a group's dead letters: all that are left, or a selection."),
    "dlq purge": (
        "dlq:purge",
        "Settle a group's dead letters without handling them: all that are left, or a selection.",
    ),
    "try": ("try_command:try_group", "Run a group's handler on real messages, and print the outcome of each."),
    "replay": (
        "replay_command:replay",
        "Replay the messages of a time window with a group's handler, without affecting the group.",
    ),
    "tail": ("message_commands:tail", "Print the messages of a topic as they arrive, until Ctrl-C."),
    "message": "Show single messages of a cluster.\n\nExample: rmqd message query orders order-4711",
    "message get": (
        "message_commands:get",
        "Show a message by its id: the producer's id, as in logs, or an offset id of 32 digits.",
    ),
    "message trace": (
        "message_commands:trace",
        "Show when and how often each group handled a message, and the member that handled it.",
    ),
    "message query": (
        "message_commands:query",
        "Show the messages of a topic with a key, in the order in which they were stored.",
    ),
    "send": ("send_command:send", "Send a message, once or several times, and print its queue and offset."),
    "pause": (
        "daemon_commands:pause",
        "Pause a group of the running daemon: it keeps its queues, stops pulling, and finishes its messages.",
    ),
    "resume": ("daemon_commands:resume", "Resume a paused group of the running daemon, or some of its queues."),
    "concurrency": (
        "daemon_commands:concurrency",
        "Change the number of batches that a group of the running daemon handles at once.",
    ),
    "canary": (
        "daemon_commands:canary",
        "Change or end the canary of a group of the running daemon, until the next reload.",
    ),
    "restart": (
        "daemon_commands:restart",
        "Load the code of a group of the running daemon again, without touching other groups.",
    ),
    "reload": (
        "daemon_commands:reload",
        "Reload the configuration of the running daemon; an invalid one changes nothing and exits with 78.",
    ),
    "broker": (
        "broker_commands:broker",
        "Run a RocketMQ (a name server and a broker) in this process, without Java, for development and tests.",
    ),
    "spark": (
        "Run groups with engine: spark without the daemon.\n\n"
        "rmqd run runs them with all other groups; these commands run a single group.\n\n"
        "Example: rmqd spark submit orders --master spark://spark-1:7077"
    ),
    "spark run": ("spark_commands:run", "Run one group with engine: spark here, in the foreground, until a signal."),
    "spark submit": (
        "spark_commands:submit",
        "Run a group with engine: spark on a cluster: standalone, YARN or Kubernetes, by spark-submit.",
    ),
    "spark compact": (
        "spark_commands:compact",
        "Compact the small files of a group's Parquet sink into large ones; the group may run meanwhile.",
    ),
    "spark pack": (
        "spark_commands:pack",
        "Pack rmqd, all plugin distributions and their requirements into an archive for a cluster.",
    ),
    "_worker": ("run_command:worker", "Serve the parent process at the other end of an inherited socket."),
}
"""Each command with its function, as module:function, and its summary, the first sentence of the help. Each first word
that several commands have in common, with its help."""


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
    if sys.argv[1:2] in (["run"], ["dev"], ["_worker"]):  # SIGHUP would end the process while it imports the handlers
        signal.signal(signal.SIGHUP, KeptReload())
    if sys.argv[1:2] in (["run"], ["dev"]) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the daemon handles it, Ctrl-C ends it without a traceback
    _open_standard_streams()
    try:
        command_line()(prog_name="rmqd")
    except OSError as error:
        if not _is_of_output(error):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's remaining output at exit
        print(f"rmqd: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(ExitCode.FAILURE)


def command_line() -> Commands:
    """Return the tree of all commands. None is imported before it is called, or its help is shown."""
    root = get_command(_app)
    assert isinstance(root, Commands)
    parents = {"": root}
    for words, entry in COMMANDS.items():
        first, _, name = words.rpartition(" ")
        if isinstance(entry, tuple):
            parents[first].add_command(Command(name, *entry, hidden=name.startswith("_")))
        else:
            parents[name] = Commands(name=name, help=entry, no_args_is_help=True, rich_markup_mode=None)
            root.add_command(parents[name])
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
