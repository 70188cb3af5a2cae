"""`rmqd message get`: shows one message by its id, and its copies in retry topics and dead letters.

`rmqd message query`: shows the messages of a topic with a key.

`rmqd tail`: prints the messages of a topic as they arrive.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.terminal.cluster_command import ask_cluster, run_query, wrapped
from rmqd.cli.terminal.output import as_document, as_lines, body_text, moment_ms, say, say_json, say_table, written_time

if TYPE_CHECKING:
    from rmqd.client.brokers import Brokers
    from rmqd.client.instance import ClientInstance
    from rmqd.errors import RmqdError
    from rmqd.operate.queries.message_queries import Found, FoundMessage
    from rmqd.wire.bodies.heartbeat_data import SubscriptionData


MESSAGE_GET_HELP = """\
A producer's id is searched in all topics, including copies in retry topics and dead letters. --topic restricts the~
search, and is faster. Brokers find a message some moments after it was sent.

Example: rmqd message get 7F000001DA3C5F8D4BC40070B2E30001
"""


@against_cluster
def get(
    asked: Asked,
    msg_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id")],
    topic: Annotated[str | None, typer.Option("--topic", help="Search only this topic")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the body of the first copy, unchanged")] = False,
) -> None:
    """Show a message by its id."""

    async def ask(brokers: Brokers, namespace: str) -> Found:
        from rmqd.errors import RmqdError
        from rmqd.operate.queries.message_queries import find_by_id

        found, errors = await find_by_id(brokers, msg_id, None if topic is None else wrapped(topic, namespace))
        if not found and not errors:
            raise RmqdError(f"no broker has a message with the id {msg_id}, or it is not indexed yet")
        return found, errors

    def show(found: list[FoundMessage]) -> None:
        if raw and found:
            sys.stdout.buffer.write(found[0].body)
        elif asked.as_json:
            say_json([as_document(one) for one in found])
        else:
            for number, one in enumerate(found):
                say([""] * (number > 0))
                say(as_lines(one))

    run_query(asked.target(), ask, show)


MESSAGE_QUERY_HELP = """\
Brokers find a message some moments after it was sent.

Example: rmqd message query orders order-4711 -o json
"""
_MOST_BODY = 60


@against_cluster
def query(
    asked: Asked,
    topic: Annotated[str, typer.Argument(help="The topic")],
    key: Annotated[str, typer.Argument(help="One of the message's keys")],
    most: Annotated[int, typer.Option("--most", min=1, max=64, help="Limit for each broker, newest first")] = 32,
) -> None:
    """Show the messages of a topic with a key."""

    async def ask(brokers: Brokers, namespace: str) -> Found:
        from rmqd.errors import RmqdError
        from rmqd.operate.queries.message_queries import find_by_key

        found, errors = await find_by_key(brokers, wrapped(topic, namespace), key, most=most)
        if not found and not errors:
            raise RmqdError(f"no broker has a message of {topic} with the key {key}, or it is not indexed yet")
        return found, errors

    def as_json(found: list[FoundMessage]) -> None:
        say_json([as_document(one) for one in found])

    run_query(asked.target(), ask, as_json if asked.as_json else _as_table)


def _as_table(found: list[FoundMessage]) -> None:
    rows = [
        (
            written_time(one.stored_at_ms),
            one.broker,
            str(one.queue),
            str(one.offset),
            one.msg_id,
            one.tags or "-",
            body_text(one.body)[:_MOST_BODY],
        )
        for one in found
    ]
    say_table(("stored", "broker", "queue", "offset", "id", "tags", "body"), rows)


TAIL_HELP = """\
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
    from rmqd.consumer.health.consistency import check_filters
    from rmqd.operate.queries.tail_queries import follow
    from rmqd.wire.topics import TOOLS_GROUP

    # if RocketMQ cannot parse a pull's condition, it returns every message
    await check_filters(client, TOOLS_GROUP, [subscription])
    await follow(client, subscription, print_one, _complain, since_ms=since_ms, most=most)


def _subscription(topic: str, tags: str | None, sql: str | None) -> SubscriptionData:
    from rmqd.errors import InvalidNameError
    from rmqd.wire.bodies.heartbeat_data import EXPRESSION_TAG, meant_filter, sql_subscription, tag_subscription

    if tags is not None and sql is not None:
        raise typer.BadParameter("given together with --tags; expected only one of them", param_hint="--sql")
    if tags is not None and (meant := meant_filter(tags, EXPRESSION_TAG)) is not None:
        typer.echo(f"rmqd: warning: {tags!r} matches no message: || joins tags; expected {meant}", err=True)
    try:
        return tag_subscription(topic, tags, 0) if sql is None else sql_subscription(topic, sql, 0)
    except InvalidNameError as error:
        raise typer.BadParameter(str(error), param_hint="--tags" if sql is None else "--sql") from None


def _print_line(namespace: str, message: FoundMessage) -> None:
    from rmqd.wire.topics import without_namespace

    one = without_namespace(message, namespace)
    place = f"{one.broker}:{one.queue}:{one.offset}"
    parts = (written_time(one.stored_at_ms), place, one.msg_id, one.tags or "-", one.keys or "-", body_text(one.body))
    say(["  ".join(parts)])


def _print_json(namespace: str, message: FoundMessage) -> None:
    import json

    from rmqd.wire.topics import without_namespace

    typer.echo(json.dumps(as_document(without_namespace(message, namespace))))


def _complain(where: str, error: RmqdError) -> None:
    say([f"rmqd: {where}: {error}; retrying every second"], err=True)
