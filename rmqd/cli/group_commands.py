"""The commands about consumer groups: `rmqd groups` and `rmqd lag`.

`rmqd groups mode`: sets whether a group pops or pulls a topic.

`rmqd groups list`: lists all groups of a cluster, one per line.

`rmqd groups show`: shows one group, its members, and the owner of each queue.

`rmqd lag`: shows the lag of groups, in messages and in age, for people, cron and CI.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, DryRun, Yes, against_cluster, confirm
from rmqd.cli.terminal.cluster_command import (
    ClusterTarget,
    WithSystem,
    ask_cluster,
    end_for_errors,
    expect_brokers,
    fail,
    run_query,
    wrapped,
)
from rmqd.cli.terminal.output import count, say, say_json, say_table, table
from rmqd.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rmqd.client.brokers import Brokers
    from rmqd.client.client_options import ClientOptions
    from rmqd.client.group_reader import TopicLag
    from rmqd.client.instance import ClientInstance
    from rmqd.errors import RmqdError
    from rmqd.operate.queries.group_queries import GroupDetail, GroupSummary, ModeChange
    from rmqd.wire.bodies.config_bodies import SetMessageRequestModeRequestBody


GROUP_MODE_HELP = """\
The group may be unknown to the brokers, before its first member starts. The plan then says so, because the name may
be misspelt. Members with consume_mode: pop, and Java members with clientRebalance off, apply it within half a minute.
The command shows a plan and asks for confirmation.

Example: rmqd groups mode order-mailer orders pop --yes
"""


@against_cluster
def set_mode(
    asked: Asked,
    group: Annotated[str, typer.Argument(help="The group's name")],
    topic: Annotated[str, typer.Argument(help="The topic")],
    mode: Annotated[str, typer.Argument(help="pop or pull")],
    share_queues: Annotated[
        int,
        typer.Option("--share-queues", min=0, help="For pop: how many members share a queue; 0: all pop all queues"),
    ] = 0,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Set whether a group pops or pulls a topic."""
    if mode not in ("pop", "pull"):
        raise typer.BadParameter(f"unknown mode {mode}; expected pop or pull", param_hint="MODE")
    target = asked.target(group)
    namespace = target.options.namespace
    names = wrapped(group, namespace), wrapped(topic, namespace)
    wanted = (*names, mode.upper(), share_queues if mode == "pop" else 0)
    changes, is_known = ask_cluster(target.options, partial(_plan, wanted))
    due = [change for change in changes if change.is_due]
    errors: Mapping[str, RmqdError] = {}
    if due:
        if dry_run and asked.as_json:
            say_json([_document(change, errors) for change in changes])
        plan = [] if is_known else [f"no broker knows group {group} yet: this prepares it; see `rmqd groups list`"]
        plan += [f"{change.broker}: {_mode_text(change.now)} -> {_mode_text(change.then)}" for change in due]
        confirm([f"{group}, {topic}:", *plan], yes=yes, dry_run=dry_run, err=asked.as_json)
        errors = ask_cluster(target.options, partial(_carry_out, changes))
    if asked.as_json:
        say_json([_document(change, errors) for change in changes])
    elif done := [change.broker for change in due if change.broker not in errors]:
        say([f"set on {', '.join(done)}"])
    else:
        say(["nothing was set" if due else f"all brokers are set to {mode} already"])
    end_for_errors(errors, [namespace])


async def _plan(wanted: tuple[str, str, str, int], client: ClientInstance) -> tuple[list[ModeChange], bool]:
    """Return the changes, and whether a broker knows the group."""
    from rmqd.client.brokers import Brokers
    from rmqd.operate.queries.group_queries import is_known, plan_mode
    from rmqd.wire.bodies.config_bodies import SetMessageRequestModeRequestBody

    group, topic, mode, share_queues = wanted
    body = SetMessageRequestModeRequestBody(topic, group, mode, share_queues)
    brokers = await Brokers.look_up(client)
    return await plan_mode(brokers, body), await is_known(brokers, group)


async def _carry_out(changes: list[ModeChange], client: ClientInstance) -> Mapping[str, RmqdError]:
    from rmqd.client.brokers import Brokers
    from rmqd.operate.queries.group_queries import carry_out

    return await carry_out(await Brokers.look_up(client), changes)


def _mode_text(mode: SetMessageRequestModeRequestBody) -> str:
    shared = f", each queue shared by {mode.pop_share_queue_num}" if mode.pop_share_queue_num else ""
    return mode.mode.lower() + shared


def _document(change: ModeChange, errors: Mapping[str, RmqdError]) -> dict[str, object]:
    error = errors.get(change.broker)
    return {
        "broker": change.broker,
        "was": change.now.mode.lower(),
        "mode": (change.now if error else change.then).mode.lower(),
        "share_queues": (change.now if error else change.then).pop_share_queue_num,
        "error": str(error) if error else None,
    }


GROUPS_LIST_HELP = """\
The brokers' groups include groups of all clients. TYPE and MODEL are reported by members. LAG counts the waiting
messages of all topics, including retries. RATE is the number of messages that members finish per second.

Example: rmqd groups list --nameserver 10.0.0.5:9876
"""


@against_cluster
def list_groups(
    asked: Asked,
    with_system: WithSystem = False,
) -> None:
    """List the groups of a cluster."""

    async def ask(brokers: Brokers, namespace: str) -> tuple[list[GroupSummary], Mapping[str, RmqdError]]:
        from rmqd.operate.queries.group_queries import list_groups

        return await list_groups(brokers, namespace=namespace, with_system=with_system)

    run_query(asked.target(), ask, _as_json if asked.as_json else _as_table)


def _as_json(groups: list[GroupSummary]) -> None:
    say_json([asdict(group) for group in groups])


def _as_table(groups: list[GroupSummary]) -> None:
    rows = [
        (
            one.group,
            str(one.members),
            one.consume_type or "-",
            one.message_model or "-",
            str(one.lag),
            f"{one.rate:.1f}",
            ",".join(one.brokers),
        )
        for one in groups
    ]
    say_table(("group", "members", "type", "model", "lag", "rate", "brokers"), rows)


GROUPS_SHOW_HELP = """\
The command queries the brokers, and through them the members of any client. OWNER is - if no member reports owning
the queue.

Example: rmqd groups show order-mailer -o json
"""


@against_cluster
def show_group(
    asked: Asked,
    group: Annotated[str, typer.Argument(help="The group's name")],
) -> None:
    """Show one group."""

    async def ask(brokers: Brokers, namespace: str) -> tuple[GroupDetail, Mapping[str, RmqdError]]:
        from rmqd.operate.queries.group_queries import show_group

        return await show_group(brokers, wrapped(group, namespace))

    run_query(asked.target(group), ask, (lambda detail: say_json(asdict(detail))) if asked.as_json else _as_tables)


def _as_tables(detail: GroupDetail) -> None:
    how = ", ".join(filter(None, (detail.consume_type, detail.message_model))) or "no members"
    lag = sum(queue.lag for queue in detail.queues)
    say([f"{detail.group}  {how}  {count(len(detail.members), 'member')}, {count(lag, 'message')} behind"])
    if detail.members:
        say([""])
        say_table(
            ("member", "address", "language", "version", "queues"),
            [
                (one.client_id, one.address, one.language, one.version, "?" if one.queues is None else str(one.queues))
                for one in detail.members
            ],
        )
    if detail.subscriptions:
        say([""])
        say_table(("topic", "subscription"), list(detail.subscriptions.items()))
    if detail.queues:
        say([""])
        say_table(
            ("topic", "broker", "queue", "owner", "committed", "max", "lag", "age"),
            [
                (
                    one.topic,
                    one.broker,
                    str(one.queue),
                    one.owner or "-",
                    "-" if one.committed is None else str(one.committed),
                    str(one.max),
                    str(one.lag),
                    format_age(one.lag_seconds),
                )
                for one in detail.queues
            ],
        )
    if detail.brokers:
        say([""])
        say_table(
            ("broker", "may consume", "may broadcast", "retries", "retry queues", "modes"),
            [
                (
                    name,
                    _yes(one.consume_enable),
                    _yes(one.consume_broadcast_enable),
                    str(one.retry_max_times),
                    str(one.retry_queue_nums),
                    ", ".join(f"{topic} {mode}" for topic, mode in one.modes.items()) or "-",
                )
                for name, one in detail.brokers.items()
            ],
        )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


LAG_HELP = """\
Without a GROUP all groups of the configuration are shown, each from its own cluster. The command queries the brokers,
without joining a group or pulling. All messages of a queue without a committed offset count. %RETRY% topics have their
own lines.

With --fail-over the command exits with 1 if the oldest waiting message of any topic is older than AGE.

Example: rmqd lag order-mailer --fail-over 5m || notify-the-night-shift
"""


@against_cluster
def lag(
    asked: Asked,
    groups: Annotated[list[str] | None, typer.Argument(help="Groups; default: all groups of the configuration")] = None,
    fail_over: Annotated[
        str | None,
        typer.Option("--fail-over", metavar="AGE", help="Exit with 1 if a message has waited longer, as 90s or 5m"),
    ] = None,
) -> None:
    """Show the lag of groups."""
    limit_seconds = None if fail_over is None else _limit_seconds(fail_over)
    target = asked.target()
    if target.config is None and not groups:
        raise typer.BadParameter("give group names, or a configuration with groups (--config)", param_hint="GROUP")
    lags, errors = _ask(groups, target)

    if asked.as_json:
        say_json([asdict(one) for one in lags])
    else:
        typer.echo("\n".join(_table(lags)))
    _end(target, lags, errors, limit_seconds, fail_over)


def _ask(groups: list[str] | None, target: ClusterTarget) -> tuple[list[TopicLag], dict[str, RmqdError]]:
    """Read the lags, each group from its own cluster. Returns the lags, and the errors."""
    by_cluster: dict[ClientOptions, dict[str, Iterable[str] | None]] = {}
    for name, topics in _topics_by_group(groups, target).items():
        by_cluster.setdefault(target.options_of(name), {})[name] = topics
    lags: list[TopicLag] = []
    errors: dict[str, RmqdError] = {}
    for options, wanted in by_cluster.items():
        found, refused = ask_cluster(options, partial(_read, wanted, is_only=len(by_cluster) == 1))
        lags += found
        errors |= refused
    return lags, errors


async def _read(
    wanted: dict[str, Iterable[str] | None], client: ClientInstance, *, is_only: bool
) -> tuple[list[TopicLag], dict[str, RmqdError]]:
    from rmqd.client.brokers import Brokers
    from rmqd.client.group_reader import read_lags
    from rmqd.errors import RemotingError, RouteNotFoundError
    from rmqd.wire.topics import without_namespace, wrap_namespace

    namespace = client.options.namespace
    asked = {
        wrap_namespace(group, namespace): topics and [wrap_namespace(topic, namespace) for topic in topics]
        for group, topics in wanted.items()
    }
    lags, errors = without_namespace(await read_lags(Brokers(client), asked), namespace)
    if not lags and is_only:  # report the cluster's error once, not once for each group
        for error in errors.values():
            if isinstance(error, RemotingError):
                raise error
    if any(isinstance(error, RouteNotFoundError) for error in errors.values()):
        await expect_brokers(client)
    return lags, errors


def _topics_by_group(groups: list[str] | None, target: ClusterTarget) -> dict[str, Iterable[str] | None]:
    config = target.config
    known = {} if config is None else config.groups
    wanted: dict[str, Iterable[str] | None] = {}
    for name in groups or known:
        if not groups and config is not None and target.cluster not in (None, config.cluster_name(name)):
            continue
        settings = known.get(name)
        if settings is not None and settings.message_model == "broadcasting":
            typer.echo(f"rmqd: {name} is broadcasting: each member keeps its own offsets, so it is omitted", err=True)
        else:
            # the group has no offsets in the parent of its lite topics; brokers know the topics with offsets
            is_lite = settings is not None and any(one.lite_topics for one in settings.subscriptions.values())
            wanted[name] = None if settings is None or is_lite else list(settings.subscriptions)
    if not wanted:
        fail(ExitCode.FAILURE, "rmqd: there are no groups to show")
    return wanted


def _end(
    target: ClusterTarget,
    lags: list[TopicLag],
    errors: dict[str, RmqdError],
    limit_seconds: float | None,
    limit: str | None,
) -> None:
    late = [
        f"rmqd: {one.group}, {one.topic}: the oldest waiting message is {format_age(one.lag_seconds)} old, "
        f"over the limit of {limit}"
        for one in lags
        if limit_seconds is not None and one.lag_seconds > limit_seconds
    ]
    end_for_errors(errors, target.namespaces, late)


def _limit_seconds(text: str) -> float:
    from rmqd.config.model.value_kinds import DURATION_FORM, parse_duration_seconds

    try:
        return parse_duration_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; expected {DURATION_FORM}", param_hint="--fail-over") from None


def format_age(seconds: float) -> str:
    """Return an age in its two largest units: `3d 4h`, `7m 12s`, `0.4s`."""
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds else "0s"
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size or parts:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2])


def _table(lags: list[TopicLag]) -> list[str]:
    rows = [(one.group, one.topic, str(len(one.queues)), str(one.lag), format_age(one.lag_seconds)) for one in lags]
    return table(("group", "topic", "queues", "lag", "age"), rows)
