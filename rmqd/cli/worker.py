"""`rmqd _worker`: the hidden command by which `rmqd run --workers N` starts its processes."""

from __future__ import annotations

from typing import Annotated

import typer

HELP = "rmqd run starts it, and nothing else can."


def worker(descriptor: Annotated[int, typer.Argument(help="The inherited socket to the parent")]) -> None:
    """Serve the parent process at the other end of an inherited socket."""
    from rmqd.process.loop import leave, put_off_garbage_collection

    put_off_garbage_collection()

    from rmqd.daemon.workers.worker import run_worker

    leave(run_worker(descriptor))
