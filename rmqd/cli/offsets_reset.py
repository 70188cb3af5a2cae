"""`rmqd offsets reset`: resets a group in a topic, notifies its members, and checks that they applied it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.confirm import DryRun, Yes
from rmqd.cli.moment import seconds
from rmqd.cli.offsets_change import LONGEST_WAIT, Change, Wait, change_offsets

if TYPE_CHECKING:
    from rmqd.client.resets.goal import Goal

HELP = """\
--to is first, last, an offset, or a time: ISO 8601 with a zone, or @milliseconds. --skip counts from the committed
offsets. Offsets outside a queue are limited to its ends. The command shows a plan: old and new offset of each queue,
and the number of messages that are handled again or skipped. Then it asks for confirmation, writes the present offsets
to a file (`backup: PATH`, for `rmqd offsets restore`), resets the queues, and waits until each member has applied the
reset, whether of rmqd, Java or another client. If a queue or member has not, it is listed, and the exit code is 1.

The file is in the folder backups in state_dir: the configuration's, else /var/lib/rmqd, or --set state_dir=PATH.
Only the given topic is reset, not its retries (%RETRY%GROUP is a separate topic).

Example: rmqd offsets reset order-mailer orders --to 2026-11-25T08:00:00+01:00
"""


@against_cluster
def reset(
    asked: Asked,
    group: Annotated[str, typer.Argument(help="The group's name")],
    topic: Annotated[str, typer.Argument(help="The topic")],
    to: Annotated[str | None, typer.Option("--to", help="first, last, an offset, a time, or @milliseconds")] = None,
    skip: Annotated[int | None, typer.Option("--skip", min=1, help="Number of messages to skip in each queue")] = None,
    broker: Annotated[str | None, typer.Option("--broker", help="Only this broker's queues")] = None,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Only the queue with this id")] = None,
    wait: Wait = LONGEST_WAIT,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Reset a group's offsets in a topic."""
    from rmqd.client.resets.plan import Scope

    goal, wait_seconds = _goal(to, skip), seconds(wait, "--wait")
    scope = Scope(broker, queue)
    change_offsets(asked, asked.target(group), Change(group, topic, goal, scope, wait_seconds, yes, dry_run))


def _goal(to: str | None, skip: int | None) -> Goal:
    from rmqd.client.resets.goal import Goal
    from rmqd.config.model.forms import PointInTime

    if (to is None) == (skip is None):
        raise typer.BadParameter("expected one of --to and --skip", param_hint="--to")
    if skip is not None:
        return Goal("skip", skip)
    assert to is not None
    if to in ("first", "last"):
        return Goal("first" if to == "first" else "last")
    if re.fullmatch(r"[0-9]{1,18}", to, re.ASCII):
        return Goal("offset", int(to))
    try:
        return Goal("time", PointInTime().check(to))
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or first, last, or an offset", param_hint="--to") from None
