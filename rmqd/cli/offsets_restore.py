"""`rmqd offsets restore`: restores the offsets that a reset has saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import ask_cluster, known_cluster_id
from rmqd.cli.confirm import DryRun, Force, Yes
from rmqd.cli.moment import seconds
from rmqd.cli.offsets_change import LONGEST_WAIT, Change, Wait, change_offsets

if TYPE_CHECKING:
    from rmqd.cli.offsets_backup import Backup

HELP = """\
This is also a reset: with a plan, a question, its own backup, and the same checks. Queues that are not in the backup,
or in which the group had no offset then, are not reset. A backup of another cluster or namespace is rejected.

Example: rmqd offsets restore /var/lib/rmqd/backups/order-mailer-orders-2026-11-25T081403.120311Z.json
"""


@against_cluster
def restore(
    asked: Asked,
    path: Annotated[Path, typer.Argument(help="The backup")],
    wait: Wait = LONGEST_WAIT,
    force: Force = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Reset a group to the offsets in a backup."""
    from rmqd.client.resets.goal import Goal
    from rmqd.client.resets.plan import Scope

    backup, wait_seconds = _read(path), seconds(wait, "--wait")
    target = asked.target(backup.group)
    options = target.options
    if not force:
        cluster = ask_cluster(options, known_cluster_id)
        if other := backup.difference(cluster, options.shown_nameserver, options.namespace):
            raise typer.BadParameter(other, param_hint="PATH")
    offsets = {(one.broker, one.queue): one.offset for one in backup.offsets if one.offset is not None}
    goal = Goal("exact", offsets=offsets)
    change_offsets(asked, target, Change(backup.group, backup.topic, goal, Scope(), wait_seconds, yes, dry_run))


def _read(path: Path) -> Backup:
    from rmqd.cli.offsets_backup import Backup

    try:
        return Backup.read(path)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror or error}", param_hint="PATH") from None
    except ValueError as error:
        raise typer.BadParameter(f"{path} is not a backup of offsets: {error}", param_hint="PATH") from None
