"""`rmqd offsets reset`: resets a group in a topic, notifies its members, and checks that they applied it.

`rmqd offsets restore`: restores the offsets that a reset has saved.

`rmqd offsets show`: shows a group's committed offset in each queue, between the queue's ends.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.against_cluster import Asked, DryRun, Force, Yes, against_cluster
from rmqd.cli.group_commands import format_age
from rmqd.cli.offset_changes import LONGEST_WAIT, OffsetChange, Wait, change_offsets
from rmqd.cli.terminal.cluster_command import ask_cluster, known_cluster_id, run_query, wrapped
from rmqd.cli.terminal.output import say_json, say_table, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.cli.offset_changes import Backup
    from rmqd.client.brokers import Brokers
    from rmqd.client.group_reader import TopicLag
    from rmqd.errors import RmqdError
    from rmqd.operate.resets.reset_plan import Goal


OFFSETS_RESET_HELP = """\
--to is first, last, an offset, or a time: ISO 8601 with a zone, or @milliseconds. --skip counts from the committed
offsets. Offsets outside a queue are limited to its ends. The command shows a plan: old and new offset of each queue,
and the number of messages that are handled again or skipped. Then it asks for confirmation, writes the current offsets
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
    from rmqd.operate.resets.reset_plan import Scope

    goal, wait_seconds = _goal(to, skip), seconds(wait, "--wait")
    scope = Scope(broker, queue)
    change_offsets(asked, asked.target(group), OffsetChange(group, topic, goal, scope, wait_seconds, yes, dry_run))


def _goal(to: str | None, skip: int | None) -> Goal:
    from rmqd.config.model.forms import PointInTime
    from rmqd.operate.resets.reset_plan import Goal

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


OFFSETS_RESTORE_HELP = """\
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
    from rmqd.operate.resets.reset_plan import Goal, Scope

    backup, wait_seconds = _read(path), seconds(wait, "--wait")
    target = asked.target(backup.group)
    options = target.options
    if not force:
        cluster = ask_cluster(options, known_cluster_id)
        if other := backup.difference(cluster, options.shown_nameserver, options.namespace):
            raise typer.BadParameter(other, param_hint="PATH")
    offsets = {(one.broker, one.queue): one.offset for one in backup.offsets if one.offset is not None}
    goal = Goal("exact", offsets=offsets)
    change_offsets(asked, target, OffsetChange(backup.group, backup.topic, goal, Scope(), wait_seconds, yes, dry_run))


def _read(path: Path) -> Backup:
    from rmqd.cli.offset_changes import Backup

    try:
        return Backup.read(path)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror or error}", param_hint="PATH") from None
    except ValueError as error:
        raise typer.BadParameter(f"{path} is not a backup of offsets: {error}", param_hint="PATH") from None


OFFSETS_SHOW_HELP = """\
COMMITTED is the next message for the group, or - if it never committed. MIN is the oldest message that the broker has,
MAX the offset of the next message. Without a TOPIC, all topics are shown in which the group has offsets.

Example: rmqd offsets show order-mailer orders -o json
"""


@against_cluster
def show(
    asked: Asked,
    group: Annotated[str, typer.Argument(help="The group's name")],
    topic: Annotated[str | None, typer.Argument(help="Only this topic")] = None,
) -> None:
    """Show a group's committed offset in each queue."""

    async def ask(brokers: Brokers, namespace: str) -> tuple[list[TopicLag], Mapping[str, RmqdError]]:
        from rmqd.client.group_reader import GroupReader

        reader = GroupReader(brokers, wrapped(group, namespace))
        return await reader.lags() if topic is None else ([await reader.lag(wrapped(topic, namespace))], {})

    target = asked.target(group)
    run_query(target, ask, _as_json if asked.as_json else _as_table)


def _as_json(lags: list[TopicLag]) -> None:
    places: list[dict[str, Any]] = [
        {"group": lag.group, "topic": lag.topic, **asdict(queue)} for lag in lags for queue in lag.queues
    ]
    say_json(places)


def _as_table(lags: list[TopicLag]) -> None:
    rows = [
        (
            lag.topic,
            queue.broker,
            str(queue.queue),
            "-" if queue.committed is None else str(queue.committed),
            str(queue.min),
            str(queue.max),
            str(queue.lag),
            format_age(queue.lag_seconds),
        )
        for lag in lags
        for queue in lag.queues
    ]
    if rows:
        say_table(("topic", "broker", "queue", "committed", "min", "max", "lag", "age"), rows)
