"""`rmqd demo`: a RocketMQ, a producer and a group in one process, with nothing else installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from rmqd.exit_codes import ExitCode

HELP = """\
The broker is rmqd's embedded one, in memory, on loopback. The group is the sample configuration's, or the first group
of --config with its own handler; the orders then go to the topics that it subscribes to. Its retries are delivered
after seconds instead of minutes. With --engine spark it runs on Spark, in separate processes on this machine. On a
terminal the view is live, elsewhere it prints a line per second.

Ctrl-C stops the producer, lets the group handle what is stored, and prints a summary; a second Ctrl-C ends at once.

Example: rmqd demo --seconds 30
"""

ENGINES = ("local", "spark")


def demo(
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="End after this time in seconds; default: on Ctrl-C")
    ] = None,
    messages: Annotated[int | None, typer.Option("--messages", min=1, help="End after this number of orders")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file or folder; default: the sample")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Group of --config; default: the first")] = None,
    engine: Annotated[str, typer.Option("--engine", help="local, or spark to run the group on Spark")] = "local",
) -> None:
    """Run a RocketMQ, a producer and a group, and watch them."""
    if engine not in ENGINES:
        raise typer.BadParameter(f"unknown engine {engine!r}; expected {' or '.join(ENGINES)}", param_hint="--engine")
    if engine == "spark" and find_spec("pyspark") is None:
        cure = "run make spark in a clone, or pip install 'rmqd[spark]'"
        typer.echo(f"rmqd demo: --engine spark: PySpark is not installed; {cure}; or use local", err=True)
        raise typer.Exit(ExitCode.CONFIG)

    from rmqd.process.loop import leave, put_off_garbage_collection

    put_off_garbage_collection()

    from rmqd.demo.options import DemoOptions
    from rmqd.demo.run import run_demo

    leave(run_demo(DemoOptions(config, group, seconds, messages, engine=engine)))
