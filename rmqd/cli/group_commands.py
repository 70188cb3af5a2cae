"""The commands about consumer groups: `rmqd groups list`, `show` and `mode`, and `rmqd lag`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Final

import typer

from rmqd.cli.terminal.cluster_command import ClusterOptions, ClusterTarget, Confirmation, ask_cluster, end_for_errors
from rmqd.cli.terminal.commands import fail
from rmqd.cli.terminal.options import GroupName, TopicName, WithSystem, duration_ms, group_names, one_of
from rmqd.cli.terminal.output import Columns, count, document_table, say, say_table, to_document
from rmqd.errors import ExitCode, RemotingError, RmqdError, RouteNotFoundError
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.runtime.plain_text import duration
from rmqd.wire.topics import without_namespace, wrap_namespace

with import_lazily():
    from rmqd.client import brokers as broker_queries
    from rmqd.client import client_options, group_reader, instance
    from rmqd.operate.queries import group_queries
    from rmqd.wire.bodies import config_bodies

_GROUPS: Final[Columns] = (
    "group",
    "members",
    ("type", "consume_type"),
    ("model", "message_model"),
    "lag",
    "rate",
    "brokers",
)
_MEMBERS: Final[Columns] = (
    ("member", "client_id"),
    "address",
    "language",
    "version",
    ("queues", lambda one: "?" if one["queues"] is None else str(one["queues"])),
)
_QUEUES: Final[Columns] = ("topic", "broker", "queue", "owner", "committed", "max", "lag", ("age", "lag_seconds"))
_BROKERS: Final[Columns] = (
    "broker",
    ("may consume", "consume_enable"),
    ("may broadcast", "consume_broadcast_enable"),
    ("retries", "retry_max_times"),
    ("retry queues", "retry_queue_nums"),
    ("modes", lambda one: ", ".join(f"{topic} {mode}" for topic, mode in one["modes"].items()) or "-"),
)
_LAGS: Final[Columns] = (
    "group",
    "topic",
    ("queues", lambda one: str(len(one["queues"]))),
    "lag",
    ("age", "lag_seconds"),
    ("largest queue", lambda one: _largest(one["queues"], one["lag"])),
)


def _largest(queues: list[dict[str, Any]], lag: int) -> str:
    """Return the name of the topic's queue with the most waiting messages, and its share of `lag`."""
    most = max(queues, key=lambda queue: queue["lag"], default={"lag": 0})
    return f"{most['broker']}:{most['queue']} has {most['lag'] / lag:.0%}" if most["lag"] else "-"


def set_mode(
    confirmation: Confirmation,
    cluster: ClusterOptions,
    group: GroupName,
    topic: TopicName,
    mode: Annotated[str, typer.Argument(help="pop or pull", autocompletion=one_of("pop", "pull"))],
    share_queues: Annotated[
        int,
        typer.Option("--share-queues", min=0, help="For pop: how many members share a queue; 0: all pop all queues"),
    ] = 0,
) -> None:
    """Set whether a group pops or pulls a topic, on all brokers of the topic, like mqadmin setConsumeMode.

    The group may be unknown to the brokers, before its first member starts. The plan then says so, because the name may
    be misspelt. Members with consume_mode: pop, and Java members with clientRebalance off, apply it within half a
    minute. The command shows a plan and asks for confirmation.

    Example: rmqd groups mode order-mailer orders pop --yes
    """
    mode = mode.lower()  # mqadmin's modes are in upper case
    if mode not in ("pop", "pull"):
        raise typer.BadParameter(f"unknown mode {mode}; expected pop or pull", param_hint="MODE")
    target = cluster.target(group)
    names = target.with_namespace(topic), target.with_namespace(group)
    wanted = config_bodies.SetMessageRequestModeRequestBody(*names, mode.upper(), share_queues if mode == "pop" else 0)
    changes, is_known = target.ask_brokers(partial(_plan, wanted))
    due = [change for change in changes if change.is_due]
    errors: Mapping[str, RmqdError] = {}
    if due:
        plan = [] if is_known else [f"no broker knows group {group} yet: this prepares it; see `rmqd groups list`"]
        plan += [f"{change.broker}: {_mode_text(change.now)} -> {_mode_text(change.then)}" for change in due]
        planned = [_document(change, errors) for change in changes]
        confirmation.ask([f"{group}, {topic}:", *plan], as_json=cluster.as_json, document=planned)
        errors = target.ask_brokers(lambda brokers: group_queries.apply_mode_changes(brokers, changes))
    done = ", ".join(change.broker for change in due if change.broker not in errors)
    none_set = "nothing was set" if due else f"all brokers are set to {mode} already"
    cluster.say([_document(change, errors) for change in changes], [f"set on {done}" if done else none_set])
    end_for_errors(errors, [target.options.namespace])


async def _plan(
    wanted: config_bodies.SetMessageRequestModeRequestBody, brokers: broker_queries.Brokers
) -> tuple[list[group_queries.ModeChange], bool]:
    """Return the mode change for each broker, and whether any broker knows the group."""
    return await group_queries.plan_mode(brokers, wanted), await group_queries.is_known(brokers, wanted.consumer_group)


def _mode_text(mode: config_bodies.SetMessageRequestModeRequestBody) -> str:
    shared = f", each queue shared by {mode.pop_share_queue_num}" if mode.pop_share_queue_num else ""
    return mode.mode.lower() + shared


def _document(change: group_queries.ModeChange, errors: Mapping[str, RmqdError]) -> dict[str, object]:
    error = errors.get(change.broker)
    mode = change.now if error else change.then
    return {
        "broker": change.broker,
        "was": change.now.mode.lower(),
        "mode": mode.mode.lower(),
        "share_queues": mode.pop_share_queue_num,
        "error": str(error) if error else None,
    }


def list_groups(cluster: ClusterOptions, with_system: WithSystem = False) -> None:
    """List the groups of a cluster with their members, consumption mode and lag.

    The brokers' groups include groups of all clients. TYPE and MODEL are reported by members. LAG counts the waiting
    messages of all topics, including retries. RATE is the number of messages that members finish per second.

    Example: rmqd groups list --nameserver 10.0.0.5:9876
    """
    target = cluster.target()
    ask = partial(group_queries.list_groups, namespace=target.options.namespace, with_system=with_system)
    cluster.show(target, ask, partial(say_table, _GROUPS))


def show_group(cluster: ClusterOptions, group: GroupName) -> None:
    """Show one group: its members, subscriptions, the owner of each queue, and its settings on brokers.

    The command queries the brokers, and through them the members of any client. OWNER is - if no member reports owning
    the queue. If members have different subscriptions, each is listed with its members.

    Example: rmqd groups show order-mailer -o json
    """
    target = cluster.target(group)
    cluster.show(target, lambda brokers: group_queries.show_group(brokers, target.with_namespace(group)), _say_group)


def _say_group(group: dict[str, Any]) -> None:
    how = ", ".join(filter(None, (group["consume_type"], group["message_model"]))) or "no members"
    lag = sum(queue["lag"] for queue in group["queues"])
    say([f"{group['group']}  {how}  {count(len(group['members']), 'member')}, {count(lag, 'message')} behind"])
    brokers = [{"broker": name} | settings for name, settings in group["brokers"].items()]
    for columns, rows in (
        (_MEMBERS, group["members"]),
        *_subscriptions(group),
        (_QUEUES, group["queues"]),
        (_BROKERS, brokers),
    ):
        if rows:
            say([""])
            say_table(columns, rows)


def _subscriptions(group: dict[str, Any]) -> Iterator[tuple[Columns, list[dict[str, Any]]]]:
    """Yield the columns and rows of the subscriptions table. If subscriptions differ, each row names its members."""
    members: dict[tuple[str, str], list[str]] = {}
    telling = [one for one in group["members"] if one["subscriptions"] is not None]
    for one in telling:
        for pair in one["subscriptions"].items():
            members.setdefault(pair, []).append(one["client_id"])
    if all(len(who) == len(telling) for who in members.values()):
        yield (
            ("topic", "subscription"),
            [{"topic": key, "subscription": of} for key, of in group["subscriptions"].items()],
        )
        return
    rows = [{"topic": pair[0], "subscription": pair[1], "members": ", ".join(who)} for pair, who in members.items()]
    yield ("topic", "subscription", "members"), sorted(rows, key=lambda row: row["topic"])


def lag(
    cluster: ClusterOptions,
    groups: Annotated[
        list[str] | None,
        typer.Argument(help="Groups; default: all groups of the configuration", autocompletion=group_names),
    ] = None,
    fail_over: Annotated[
        str | None,
        typer.Option("--fail-over", metavar="AGE", help="Exit with 1 if a message has waited longer, as 90s or 5m"),
    ] = None,
) -> None:
    """Show the lag of groups: the number of waiting messages, and the age of the oldest.

    Without a GROUP all groups of the configuration are shown, each from its own cluster. The command queries the
    brokers, without joining a group or pulling. All messages of a queue without a committed offset count. %RETRY%
    topics have their own lines. LARGEST QUEUE is the queue with the most waiting messages; `rmqd diagnose` names its
    most frequent keys.

    With --fail-over the command exits with 1 if the oldest waiting message of any topic is older than AGE.

    Example: rmqd lag order-mailer --fail-over 5m || notify-the-night-shift
    """
    limit_seconds = None if fail_over is None else duration_ms(fail_over, "--fail-over") / 1000
    target = cluster.target()
    if target.config is None and not groups:
        raise typer.BadParameter("give group names, or a configuration with groups (--config)", param_hint="GROUP")
    lags, errors = _ask(groups, target)
    cluster.say(to_document(lags), document_table(_LAGS, to_document(lags)))
    late = [
        f"rmqd: {one.group}, {one.topic}: the oldest waiting message is {duration(one.lag_seconds)} old, "
        f"over the limit of {fail_over}"
        for one in lags
        if limit_seconds is not None and one.lag_seconds > limit_seconds
    ]
    end_for_errors(errors, target.namespaces, late)


def _ask(groups: list[str] | None, target: ClusterTarget) -> tuple[list[group_reader.TopicLag], dict[str, RmqdError]]:
    """Return the lags of the groups, each read from its own cluster, and the errors of failed queries."""
    by_cluster: dict[client_options.ClientOptions, dict[str, Iterable[str] | None]] = {}
    for name, topics in _topics_by_group(groups, target).items():
        by_cluster.setdefault(target.options_of(name), {})[name] = topics
    lags: list[group_reader.TopicLag] = []
    errors: dict[str, RmqdError] = {}
    for options, wanted in by_cluster.items():
        found, refused = ask_cluster(options, partial(_read, wanted, is_only=len(by_cluster) == 1))
        lags += found
        errors |= refused
    return lags, errors


async def _read(
    wanted: dict[str, Iterable[str] | None], client: instance.ClientInstance, *, is_only: bool
) -> tuple[list[group_reader.TopicLag], dict[str, RmqdError]]:
    namespace = client.options.namespace
    asked = {
        wrap_namespace(group, namespace): topics and [wrap_namespace(topic, namespace) for topic in topics]
        for group, topics in wanted.items()
    }
    lags, errors = without_namespace(await group_reader.read_lags(broker_queries.Brokers(client), asked), namespace)
    if not lags and is_only:  # report the cluster's error once, not once for each group
        for error in errors.values():
            if isinstance(error, RemotingError):
                raise error
    if any(isinstance(error, RouteNotFoundError) for error in errors.values()):
        await broker_queries.Brokers.from_name_server(client)
    return lags, errors


def _topics_by_group(groups: list[str] | None, target: ClusterTarget) -> dict[str, Iterable[str] | None]:
    config = target.config
    wanted: dict[str, Iterable[str] | None] = {}
    for name in groups or target.groups:
        if not groups and config is not None and target.cluster not in (None, config.cluster_name(name)):
            continue
        settings = target.groups.get(name)
        if settings is not None and settings.message_model == "broadcasting":
            typer.echo(f"rmqd: {name} is broadcasting: each member keeps its own offsets, so it is omitted", err=True)
        else:
            # a group has no offsets in the parent topic of its lite topics, so brokers are asked for its topics
            is_lite = settings is not None and any(one.lite_topics for one in settings.subscriptions.values())
            wanted[name] = None if settings is None or is_lite else list(settings.subscriptions)
    if not wanted:
        fail(ExitCode.FAILURE, "rmqd: there are no groups to show")
    return wanted
