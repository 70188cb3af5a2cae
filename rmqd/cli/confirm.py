"""The plan and the question that a command shows before it changes a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from rmqd.cli.cluster import fail
from rmqd.cli.render import say
from rmqd.exit_codes import ExitCode

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")]
Force = Annotated[bool, typer.Option("--force", help="Use a file of another cluster, namespace or group")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the plan")]


def confirm(plan: Iterable[str], *, yes: bool, dry_run: bool, err: bool = False) -> None:
    """Show the plan and ask for confirmation. Ends the command if the answer is no.

    With `err` the plan is written to standard error, so that standard output contains only data.
    """
    say(plan, err=err)
    if dry_run:
        raise typer.Exit(ExitCode.OK)
    if yes:
        return
    if not sys.stdin.isatty():
        fail(ExitCode.FAILURE, "rmqd: nothing was changed, because there is no terminal for confirmation; use --yes")
    if code := _refusal(err):
        fail(code, "rmqd: nothing was changed")


def _refusal(err: bool) -> int:
    """Ask; return OK, or the exit code if the answer is not yes."""
    try:
        return ExitCode.OK if typer.confirm("Do it?", err=err) else ExitCode.FAILURE
    except (typer.Abort, KeyboardInterrupt) as end:  # Ctrl-C during or before reading, or the end of the input
        typer.echo(err=True)
        by_ctrl_c = isinstance(end, KeyboardInterrupt) or isinstance(end.__context__, KeyboardInterrupt)
        return ExitCode.INTERRUPTED if by_ctrl_c else ExitCode.FAILURE
