"""`rmqd run`: the daemon, which consumes all groups of a configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqd.cli.cluster import ConfigPath, Overrides

HELP = """\
SIGTERM or SIGINT drains and exits with 0; a second one cuts the drain short and exits with 128 + its number.
SIGHUP reloads the configuration; a bad one changes nothing.

Example: rmqd run --config /etc/rmqd/rmqd.yaml --set log.level=debug --group order-mailer
"""


def run(
    config: ConfigPath = None,
    overrides: Overrides = None,
    groups: Annotated[list[str] | None, typer.Option("--group", help="Run only this group; repeatable")] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="Processes that share the groups' queues")
    ] = 1,
) -> None:
    """Run the consumer groups of a configuration until a signal."""
    from rmqd.process.loop import leave, put_off_garbage_collection

    put_off_garbage_collection()

    from rmqd.daemon.daemon import RunOptions, run_daemon

    options = RunOptions(config, tuple(overrides or ()), tuple(groups or ()), workers)
    leave(run_daemon(options))
