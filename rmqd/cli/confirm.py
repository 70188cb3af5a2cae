"""What a command shows and asks before it changes a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from rmqd.cli.cluster import fail
from rmqd.cli.render import say
from rmqd.exit_codes import ExitCode

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking")]
Force = Annotated[bool, typer.Option("--force", help="Use a file of another cluster, namespace or group")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done")]


def confirm(plan: Iterable[str], *, yes: bool, dry_run: bool, err: bool = False) -> None:
    """Show what is about to be done, and ask. Ends the command where it is not to be done.

    With `err` the plan goes to standard error, which leaves the other to data.
    """
    say(plan, err=err)
    if dry_run:
        raise typer.Exit(ExitCode.OK)
    if yes:
        return
    if not sys.stdin.isatty():
        fail(ExitCode.FAILURE, "rmqd: nothing is changed without being asked for; --yes does it without a terminal")
    if code := _refusal(err):
        fail(code, "rmqd: nothing was changed")


def _refusal(err: bool) -> int:
    """Ask; the exit code unless the answer is yes."""
    try:
        return ExitCode.OK if typer.confirm("Do it?", err=err) else ExitCode.FAILURE
    except (typer.Abort, KeyboardInterrupt) as end:  # Ctrl-C while it reads, and before that; or the input's end
        typer.echo(err=True)
        by_ctrl_c = isinstance(end, KeyboardInterrupt) or isinstance(end.__context__, KeyboardInterrupt)
        return ExitCode.INTERRUPTED if by_ctrl_c else ExitCode.FAILURE
