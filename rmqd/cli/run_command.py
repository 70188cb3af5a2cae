"""`rmqd run`, which runs the daemon, and `rmqd _worker`, which runs in the processes of its --workers."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from rmqd.cli.terminal.options import ConfigPath, Overrides, group_names
from rmqd.runtime.lazy_imports import lazily

with lazily():
    from rmqd.daemon import daemon
    from rmqd.daemon.workers import worker_main
    from rmqd.runtime import event_loop


def run(
    config: ConfigPath = None,
    overrides: Overrides = None,
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="Run only this group; repeatable", autocompletion=group_names)
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="Processes that share the groups' queues")
    ] = 1,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="For development: restart a group when files of its handler change"),
    ] = False,
) -> None:
    """Run the consumer groups of a configuration until a signal.

    SIGTERM or SIGINT drains and exits with 0; a second one ends the drain at once and exits with 128 + its number.
    SIGHUP reloads the configuration; an invalid one changes nothing.

    With --reload each group runs in its own process, which drains and is replaced when a file of its handler's package
    changes. If the changed code cannot be imported, the group pauses, and the log shows the error, until it is fixed.

    Example: rmqd run --config /etc/rmqd/rmqd.yaml --set log.level=debug --group order-mailer
    """
    event_loop.put_off_garbage_collection()
    if reload:
        write_no_bytecode()
    options = daemon.RunOptions(config, tuple(overrides or ()), tuple(groups or ()), workers, reload)
    event_loop.leave(daemon.run_daemon(options))


def write_no_bytecode() -> None:
    """Do not let this process and its workers write compiled modules.

    Python mistakes one for its source if the source has the same size and was written in the same second, even if
    edited.
    """
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def worker(descriptor: Annotated[int, typer.Argument(help="The inherited socket to the parent")]) -> None:
    """Serve the parent process at the other end of an inherited socket.

    Only rmqd run can start it.
    """
    event_loop.put_off_garbage_collection()
    event_loop.leave(worker_main.run_worker(descriptor))
