"""`rmqd _worker`: the hidden command of the processes that `rmqd run --workers N` starts."""

from __future__ import annotations

from typing import Annotated

import typer

HELP = "Only rmqd run can start it."


def worker(descriptor: Annotated[int, typer.Argument(help="The inherited socket to the parent")]) -> None:
    """Serve the parent process at the other end of an inherited socket."""
    from rmqd.process.loop import leave, put_off_garbage_collection

    put_off_garbage_collection()

    from rmqd.daemon.workers.worker import run_worker

    leave(run_worker(descriptor))
