"""`rmqd lag`: shows the lag of groups, in messages and in age, for people, cron and CI."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import Target, ask_cluster, end_for_errors, expect_brokers, fail
from rmqd.cli.render import say_json, table
from rmqd.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rmqd.client.group_lag import TopicLag
    from rmqd.client.instance import ClientInstance
    from rmqd.client.options import ClientOptions
    from rmqd.errors import RmqdError

HELP = """\
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
        say_json([one.document() for one in lags])
    else:
        typer.echo("\n".join(_table(lags)))
    _end(target, lags, errors, limit_seconds, fail_over)


def _ask(groups: list[str] | None, target: Target) -> tuple[list[TopicLag], dict[str, RmqdError]]:
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
    from rmqd.client.group_lag import LagReader, read_lags
    from rmqd.clock import SystemClock
    from rmqd.errors import RemotingError, RouteNotFoundError
    from rmqd.wire.namespace import without_namespace
    from rmqd.wire.topics import wrap_namespace

    namespace = client.options.namespace
    asked = {
        wrap_namespace(group, namespace): topics and [wrap_namespace(topic, namespace) for topic in topics]
        for group, topics in wanted.items()
    }
    lags, errors = without_namespace(await read_lags(LagReader(client, SystemClock()), asked), namespace)
    if not lags and is_only:  # report the cluster's error once, not once for each group
        for error in errors.values():
            if isinstance(error, RemotingError):
                raise error
    if any(isinstance(error, RouteNotFoundError) for error in errors.values()):
        await expect_brokers(client)
    return lags, errors


def _topics_by_group(groups: list[str] | None, target: Target) -> dict[str, Iterable[str] | None]:
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
    target: Target,
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
    from rmqd.config.model.quantities import DURATION_FORM, parse_duration_seconds

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
