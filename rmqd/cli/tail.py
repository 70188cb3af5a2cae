"""`rmqd tail`: prints the messages of a topic as they arrive."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import ask_cluster, wrapped
from rmqd.cli.message_text import as_document, body_text, written_time
from rmqd.cli.moment import moment_ms
from rmqd.cli.render import say

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.client.looks.messages import FoundMessage
    from rmqd.errors import RmqdError
    from rmqd.wire.bodies.heartbeat import SubscriptionData

HELP = """\
--since begins with messages of an age (10m), or since a time (ISO 8601 with a zone, or @milliseconds). The command
reads without a group, and does not affect groups. A line is: store time (UTC), broker:queue:offset,
id, tag, keys, body. -o json prints one JSON document per line.

Example: rmqd tail orders --tags "paid || refunded" --since 10m
"""


@against_cluster
def tail(
    asked: Asked,
    topic: Annotated[str, typer.Argument(help="The topic")],
    tags: Annotated[str | None, typer.Option("--tags", help='Only these tags, as "paid || refunded"')] = None,
    sql: Annotated[str | None, typer.Option("--sql", help="Only messages that match an SQL92 condition")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Age of the first message, as 10m, or a time")
    ] = None,
    most: Annotated[int | None, typer.Option("--most", min=1, help="Number of messages after which to end")] = None,
) -> None:
    """Print the messages of a topic as they arrive."""
    since_ms = None if since is None else moment_ms(since, "--since")
    target = asked.target()
    namespace = target.options.namespace
    subscription = _subscription(wrapped(topic, namespace), tags, sql)
    print_one = partial(_print_json if asked.as_json else _print_line, namespace)
    try:
        ask_cluster(target.options, lambda client: _follow(client, subscription, print_one, since_ms, most))
    except KeyboardInterrupt:
        return


async def _follow(
    client: ClientInstance,
    subscription: SubscriptionData,
    print_one: partial[None],
    since_ms: int | None,
    most: int | None,
) -> None:
    from rmqd.client.looks.tail import follow
    from rmqd.consumer.health.filter_check import check_filters
    from rmqd.wire.topics import TOOLS_GROUP

    # if RocketMQ cannot parse a pull's condition, it returns every message
    await check_filters(client, TOOLS_GROUP, [subscription])
    await follow(client, subscription, print_one, _complain, since_ms=since_ms, most=most)


def _subscription(topic: str, tags: str | None, sql: str | None) -> SubscriptionData:
    from rmqd.errors import InvalidNameError
    from rmqd.wire.bodies.heartbeat import EXPRESSION_TAG
    from rmqd.wire.filter import meant_filter, sql_subscription, tag_subscription

    if tags is not None and sql is not None:
        raise typer.BadParameter("given together with --tags; expected only one of them", param_hint="--sql")
    if tags is not None and (meant := meant_filter(tags, EXPRESSION_TAG)) is not None:
        typer.echo(f"rmqd: warning: {tags!r} matches no message: || joins tags; expected {meant}", err=True)
    try:
        return tag_subscription(topic, tags, 0) if sql is None else sql_subscription(topic, sql, 0)
    except InvalidNameError as error:
        raise typer.BadParameter(str(error), param_hint="--tags" if sql is None else "--sql") from None


def _print_line(namespace: str, message: FoundMessage) -> None:
    from rmqd.wire.namespace import without_namespace

    one = without_namespace(message, namespace)
    place = f"{one.broker}:{one.queue}:{one.offset}"
    parts = (written_time(one.stored_at_ms), place, one.msg_id, one.tags or "-", one.keys or "-", body_text(one.body))
    say(["  ".join(parts)])


def _print_json(namespace: str, message: FoundMessage) -> None:
    import json

    from rmqd.wire.namespace import without_namespace

    typer.echo(json.dumps(as_document(without_namespace(message, namespace))))


def _complain(where: str, error: RmqdError) -> None:
    say([f"rmqd: {where}: {error}; retrying every second"], err=True)
