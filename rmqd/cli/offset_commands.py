"""The commands `rmqd offsets show`, `reset` and `restore`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rmqd.cli.terminal.cluster_command import ClusterOptions, ClusterTarget, Confirmation
from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.options import Force, GroupName, duration_ms, moment_ms, topic_names
from rmqd.cli.terminal.output import Columns, say_table
from rmqd.errors import ExitCode, RmqdError
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.wire.topics import is_retry_topic

with import_lazily():
    from rmqd.cli import offset_changes
    from rmqd.client import brokers as broker_queries
    from rmqd.client import group_reader, instance
    from rmqd.operate.resets import reset_plan

_QUEUES: Final[Columns] = ("topic", "broker", "queue", "committed", "min", "max", "lag", ("age", "lag_seconds"))

Wait = Annotated[str, typer.Option("--wait", help="Time for members to apply the reset")]
LONGEST_WAIT = "45s"  # a broker holds a pull for up to 20 s, and an older Java client pauses for 10 s


def reset(
    confirmation: Confirmation,
    cluster: ClusterOptions,
    group: GroupName,
    topic: Annotated[
        str | None, typer.Argument(help="The topic; optional if the group has one", autocompletion=topic_names)
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All topics of the group")] = False,
    to: Annotated[str | None, typer.Option("--to", help="first, last, an offset, a time, or @milliseconds")] = None,
    skip: Annotated[int | None, typer.Option("--skip", min=1, help="Number of messages to skip in each queue")] = None,
    broker: Annotated[str | None, typer.Option("--broker", help="Only this broker's queues")] = None,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="Only the queue with this id")] = None,
    wait: Wait = LONGEST_WAIT,
) -> None:
    """Reset a group's offsets in a topic, even while its members run.

    --to is first, last, an offset, or a time: ISO 8601 with a zone, or @milliseconds. --skip counts from the committed
    offsets. Offsets outside a queue are limited to its ends. The command shows a plan: old and new offset of each
    queue, and the number of messages that are handled again or skipped. Then it asks for confirmation, writes the
    current offsets to a file (`backup: PATH`, for `rmqd offsets restore`), resets the queues, and waits until each
    member has applied the reset, whether of rmqd, Java or another client. If a queue or member has not, it is listed,
    and the exit code is 1.

    The file is in the folder backups in state_dir: the configuration's, else /var/lib/rmqd, or --set state_dir=PATH.
    Only the topic is reset, not its retries (%RETRY%GROUP is a separate topic). With --all-topics each topic has its
    own backup, and -o json prints a list.

    Example: rmqd offsets reset order-mailer orders --to 2026-11-25T08:00:00+01:00
    """
    goal, wait_seconds, target = _goal(to, skip), duration_ms(wait, "--wait") / 1000, cluster.target(group)
    if topic is not None and all_topics:
        raise typer.BadParameter("given together with TOPIC; expected only one of them", param_hint="--all-topics")
    topics = _topics(target, group) if topic is None else [topic]
    if len(topics) > 1 and not all_topics:
        several = f"{group} has the topics {', '.join(topics)}; name one of them, or use --all-topics"
        raise typer.BadParameter(several, param_hint="TOPIC")
    changes = [_change(target, group, one, goal, reset_plan.QueueSelection(broker, queue)) for one in topics]
    offset_changes.change_offsets(
        cluster, target, changes, wait_seconds=wait_seconds, confirmation=confirmation, as_list=all_topics
    )


def _topics(target: ClusterTarget, group: str) -> list[str]:
    """Return a group's configured topics, otherwise its topics with offsets. Ends the command if there are none."""
    if (configured := target.groups.get(group)) is not None:
        return sorted(configured.subscriptions)

    async def ask(brokers: broker_queries.Brokers) -> list[str]:
        reader = group_reader.GroupReader(brokers, target.with_namespace(group))
        return sorted(topic for topic in await reader.topics() if not is_retry_topic(topic))

    topics = target.for_output(target.ask_brokers(ask))
    if not topics:
        fail(ExitCode.FAILURE, f"rmqd: {group} has no offset on any broker; run `rmqd groups list` to see all groups")
    return topics


def _change(
    target: ClusterTarget, group: str, topic: str, goal: reset_plan.ResetGoal, scope: reset_plan.QueueSelection
) -> reset_plan.OffsetChange:
    """Return the change of a group's offsets. Ends the command if the group is configured as broadcasting."""
    configured = target.groups.get(group)
    if configured is not None and configured.message_model == "broadcasting":
        fail(ExitCode.FAILURE, f"rmqd: {reset_plan.broadcasting(group)}")
    return reset_plan.OffsetChange(target.with_namespace(group), target.with_namespace(topic), goal, scope)


def _goal(to: str | None, skip: int | None) -> reset_plan.ResetGoal:
    if to is not None and skip is not None:
        raise typer.BadParameter("given together with --skip; expected only one of them", param_hint="--to")
    if skip is not None:
        return reset_plan.ResetGoal("skip", skip)
    if to is None:
        raise typer.BadParameter("missing; expected one of --to and --skip", param_hint="--to")
    if to in ("first", "last"):
        return reset_plan.ResetGoal("first" if to == "first" else "last")
    if re.fullmatch(r"[0-9]{1,18}", to, re.ASCII):
        return reset_plan.ResetGoal("offset", int(to))
    return reset_plan.ResetGoal("time", moment_ms(to, "--to", ", or first, last, or an offset"))


def restore(
    confirmation: Confirmation,
    cluster: ClusterOptions,
    path: Annotated[Path, typer.Argument(help="The backup")],
    wait: Wait = LONGEST_WAIT,
    force: Force = False,
) -> None:
    """Reset a group to the offsets in a backup that `rmqd offsets reset` has written.

    This is also a reset: with a plan, a question, its own backup, and the same checks. Queues that are not in the
    backup, or in which the group had no offset then, are not reset. A backup of another cluster or namespace is
    rejected.

    Example: rmqd offsets restore /var/lib/rmqd/backups/order-mailer-orders-2026-11-25T081403.120311Z.json
    """
    backup, wait_seconds = _read(path), duration_ms(wait, "--wait") / 1000
    target = cluster.target(backup.group)
    options = target.options
    if not force and (
        other := backup.mismatch_error(
            target.ask(_known_cluster_id), options.nameserver_for_output, options.joined_namespaces
        )
    ):
        raise typer.BadParameter(other, param_hint="PATH")
    offsets = {(one.broker, one.queue): one.offset for one in backup.offsets if one.offset is not None}
    change = _change(
        target, backup.group, backup.topic, reset_plan.ResetGoal("exact", offsets=offsets), reset_plan.QueueSelection()
    )
    offset_changes.change_offsets(cluster, target, [change], wait_seconds=wait_seconds, confirmation=confirmation)


async def _known_cluster_id(client: instance.ClientInstance) -> str:
    """Return the id that is stored in the cluster; empty if no id is stored. This query does not create an id."""
    await client.cluster_id.learn(may_write=False)
    return client.cluster_id.id


def _read(path: Path) -> offset_changes.Backup:
    try:
        return offset_changes.Backup.read(path)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror or error}", param_hint="PATH") from None
    except ValueError as error:
        raise typer.BadParameter(f"{path} is not a backup of offsets: {error}", param_hint="PATH") from None


def show(
    cluster: ClusterOptions,
    group: GroupName,
    topic: Annotated[str | None, typer.Argument(help="Only this topic", autocompletion=topic_names)] = None,
) -> None:
    """Show a group's committed offset in each queue, and the ends of the queue.

    COMMITTED is the next message for the group, or - if it never committed. MIN is the oldest message that the broker
    has, MAX the offset of the next message. Without a TOPIC, all topics are shown in which the group has offsets.

    Example: rmqd offsets show order-mailer orders -o json
    """
    target = cluster.target(group)

    async def ask(brokers: broker_queries.Brokers) -> tuple[list[group_reader.TopicLag], Mapping[str, RmqdError]]:
        reader = group_reader.GroupReader(brokers, target.with_namespace(group))
        return await reader.lags() if topic is None else ([await reader.lag(target.with_namespace(topic))], {})

    cluster.show(target, ask, _say_queues, _documents)


def _documents(lags: list[group_reader.TopicLag]) -> list[dict[str, Any]]:
    return [{"group": lag.group, "topic": lag.topic, **asdict(queue)} for lag in lags for queue in lag.queues]


def _say_queues(queues: list[dict[str, Any]]) -> None:
    if queues:
        say_table(_QUEUES, queues)
