"""`rmqd spark run`: runs one group on Spark, in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqd.cli.cluster import ConfigPath, Overrides

HELP = """\
As with rmqd run, its messages are handled in micro-batches and its offsets are committed. Without the daemon there are
no metrics and no restarts: its figures are logged every 10 seconds, and a failure ends the command with 1. SIGTERM or
SIGINT finishes the current micro-batch, commits and exits with 0; a second one ends it at once and exits with 128 + its
number. With spark.trigger: available_now the command ends when all present messages are handled.

Example: rmqd spark run order-archive --set groups.order-archive.spark.trigger=available_now
"""


def run(
    group: Annotated[str, typer.Argument(help="The group's name; optional if only one is on Spark")] = "",
    config: ConfigPath = None,
    overrides: Overrides = None,
) -> None:
    """Run one group on Spark here, until a signal."""
    import signal
    import threading

    from rmqd.errors import ConfigError
    from rmqd.exit_codes import ExitCode
    from rmqd.process.loop import leave
    from rmqd.spark.driver import share_import_path
    from rmqd.spark.engine.foreground import run_group
    from rmqd.spark.engine.ordering import order_of

    try:
        order = order_of(config, group, tuple(overrides or ()))
    except ConfigError as error:
        for problem in error.problems:
            typer.echo(str(problem), err=True)
        raise typer.Exit(ExitCode.CONFIG) from None
    stop, hurry = threading.Event(), threading.Event()
    cut_short: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        if not stop.is_set():
            stop.set()
            return
        cut_short.append(number)
        hurry.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    share_import_path(order.import_path)
    code = run_group(order, stop, hurry=hurry)
    leave(128 + cut_short[0] if cut_short else code)
