"""The commands `rmqd message get`, `query` and `trace`, and `rmqd tail`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

import typer

from rmqd.cli.terminal import output
from rmqd.cli.terminal.cluster_command import ClusterOptions
from rmqd.cli.terminal.options import TopicName, moment_or_age_ms, topic_names
from rmqd.errors import InvalidNameError, RmqdError
from rmqd.runtime.lazy_imports import import_lazily
from rmqd.runtime.plain_text import duration, printable_lines
from rmqd.wire.topics import TOOLS_GROUP, without_namespace

with import_lazily():
    from rmqd.client import brokers as broker_queries
    from rmqd.client import instance
    from rmqd.consumer.health import consistency
    from rmqd.operate.queries import message_queries
    from rmqd.wire.bodies import heartbeat_data

_MESSAGES: Final[output.Columns] = (
    ("stored", "stored_at_ms"),
    "broker",
    "queue",
    "offset",
    ("id", "msg_id"),
    "tags",
    ("body", output.body_cell),
)


def get(
    cluster: ClusterOptions,
    msg_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id")],
    topic: Annotated[
        str | None, typer.Option("--topic", help="Search only this topic", autocompletion=topic_names)
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the body of the first copy, unchanged")] = False,
) -> None:
    """Show a message by its id: the producer's id, as in logs, or an offset id of 32 digits.

    A producer's id is searched in all topics, including copies in retry topics and dead letters. --topic restricts the
    search, and is faster. Brokers find a message some moments after it was sent.

    Example: rmqd message get 7F000001DA3C5F8D4BC40070B2E30001
    """
    target = cluster.target()

    async def ask(brokers: broker_queries.Brokers) -> message_queries.MessagesAndErrors:
        found, errors = await message_queries.find_by_id(
            brokers, msg_id, None if topic is None else target.with_namespace(topic)
        )
        if not found and not errors:
            raise RmqdError(f"no broker has a message with the id {msg_id}, or it is not indexed yet")
        return found, errors

    def say_messages(messages: list[dict[str, Any]]) -> None:
        for number, one in enumerate(messages):
            output.say([""] * (number > 0))
            output.say(output.message_lines(one))

    def write_body(messages: list[dict[str, Any]]) -> None:
        if messages:
            sys.stdout.buffer.write(output.message_body(messages[0]))

    if raw:
        cluster = replace(cluster, output="table")
    cluster.show(target, ask, write_body if raw else say_messages, _documents)


def query(
    cluster: ClusterOptions,
    topic: TopicName,
    key: Annotated[str, typer.Argument(help="One of the message's keys")],
    most: Annotated[int, typer.Option("--most", min=1, max=64, help="Limit for each broker, newest first")] = 32,
) -> None:
    """Show the messages of a topic with a key, in the order in which they were stored.

    Brokers find a message some moments after it was sent.

    Example: rmqd message query orders order-4711 -o json
    """
    target = cluster.target()

    async def ask(brokers: broker_queries.Brokers) -> message_queries.MessagesAndErrors:
        found, errors = await message_queries.find_by_key(brokers, target.with_namespace(topic), key, most=most)
        if not found and not errors:
            raise RmqdError(f"no broker has a message of {topic} with the key {key}, or it is not indexed yet")
        return found, errors

    cluster.show(target, ask, partial(output.say_table, _MESSAGES), _documents)


def trace(
    cluster: ClusterOptions,
    msg_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The message's id")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="With --key", autocompletion=topic_names)] = None,
    key: Annotated[str | None, typer.Option("--key", help="A key of messages of --topic, instead of an id")] = None,
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", help="Topic of RocketMQ's message trace")
    ] = "RMQ_SYS_TRACE_TOPIC",
) -> None:
    """Show when and how often each group handled a message, and the member that handled it.

    For each group that reads its topic, the newest copy counts: the message itself, a retry or a dead letter. "passed"
    means that the group committed past that copy, "waiting" that it did not. Between two attempts a retry is in no
    topic of the group, and the earlier copy is shown. Clients, times and results come from message trace (enable_trace
    of groups, traceTopicEnable of brokers).

    Example: rmqd message trace 7F000001DA3C5F8D4BC40070B2E30001

    Example: rmqd message trace --topic orders --key order-4711
    """
    if (msg_id is None) == (topic is None or key is None):
        raise typer.BadParameter("expected an ID, or --topic and --key")
    target = cluster.target()

    async def ask(
        brokers: broker_queries.Brokers,
    ) -> tuple[list[message_queries.MessageTraceReport], dict[str, RmqdError]]:
        ids, errors = [msg_id or ""], dict[str, RmqdError]()
        if topic is not None and key is not None:
            found, errors = await message_queries.find_by_key(brokers, target.with_namespace(topic), key)
            ids = list(dict.fromkeys(one.msg_id for one in found))
        reports = []
        for one in ids:
            report, failed = await message_queries.trace_message(brokers, one, trace_topic)
            errors |= failed
            reports += [report] if report.copies or report.events else []
        if not reports and not errors:
            raise RmqdError(f"no broker has a message {msg_id or f'of {topic} with the key {key}'}, or not indexed yet")
        return reports, errors

    cluster.show(target, ask, _say_traces, _traces)


_GROUPS: Final[output.Columns] = (
    "group", "state", ("newest copy", "topic"), "broker", "queue", "offset", "committed", "attempts", "reason",
)  # fmt: skip
_EVENTS: Final[output.Columns] = (
    ("at", "at_ms"),
    "kind",
    "group",
    "client",
    "attempt",
    ("took", lambda one: "-" if one["cost_ms"] is None else duration(one["cost_ms"] / 1000)),
    "result",
)


def _traces(reports: list[message_queries.MessageTraceReport]) -> list[dict[str, Any]]:
    return [output.to_document(report) | {"copies": _documents(list(report.copies))} for report in reports]


def _say_traces(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        output.say([f"message {report['msg_id']}"])
        output.say_table(("topic", *_MESSAGES[:4], ("reconsumed", "reconsume_times")), report["copies"])
        output.say_table(_GROUPS, report["groups"]) if report["groups"] else output.say(["no group reads its topic"])
        output.say_table(_EVENTS, report["events"]) if report["events"] else output.say(["no message trace of it"])


def _documents(messages: list[message_queries.FoundMessage]) -> list[dict[str, Any]]:
    return [output.message_document(one) for one in messages]


def tail(
    cluster: ClusterOptions,
    topic: TopicName,
    tags: Annotated[str | None, typer.Option("--tags", help='Only these tags, as "paid || refunded"')] = None,
    sql: Annotated[str | None, typer.Option("--sql", help="Only messages that match an SQL92 condition")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Age of the first message, as 10m, or a time")
    ] = None,
    most: Annotated[int | None, typer.Option("--most", min=1, help="Number of messages after which to end")] = None,
) -> None:
    """Print the messages of a topic as they arrive, until Ctrl-C.

    --since begins with messages of an age (10m), or since a time (ISO 8601 with a zone, or @milliseconds). The command
    reads without a group, and does not affect groups. A line is: store time (UTC), broker:queue:offset, id, tag, keys,
    body. -o json prints one JSON document per line.

    Example: rmqd tail orders --tags "paid || refunded" --since 10m
    """
    since_ms = None if since is None else moment_or_age_ms(since, "--since")
    target = cluster.target()
    namespace = target.options.namespace
    subscription = _subscription(target.with_namespace(topic), tags, sql)
    write: Callable[[dict[str, Any]], str] = json.dumps if cluster.as_json else _as_line

    async def run(client: instance.ClientInstance) -> None:
        # brokers return all messages for a pull with an invalid SQL condition
        await consistency.check_filters(client, TOOLS_GROUP, [subscription])
        await message_queries.follow(client, subscription, print_message, _complain, since_ms=since_ms, most=most)

    def print_message(message: message_queries.FoundMessage) -> None:
        typer.echo(write(output.message_document(without_namespace(message, namespace))))

    try:
        target.ask(run)
    except KeyboardInterrupt:
        return


def _subscription(topic: str, tags: str | None, sql: str | None) -> heartbeat_data.SubscriptionData:
    if tags is not None and sql is not None:
        raise typer.BadParameter("given together with --tags; expected only one of them", param_hint="--sql")
    kind = heartbeat_data.EXPRESSION_TAG if sql is None else heartbeat_data.EXPRESSION_SQL92
    if (mistake := heartbeat_data.filter_mistake(tags or sql or "", kind)) is not None:
        typer.echo(f"rmqd: warning: {mistake}", err=True)
    try:
        if sql is not None:
            return heartbeat_data.sql_subscription(topic, sql, 0)
        return heartbeat_data.tag_subscription(topic, tags, 0)
    except InvalidNameError as error:
        raise typer.BadParameter(str(error), param_hint="--tags" if sql is None else "--sql") from None


def _as_line(message: dict[str, Any]) -> str:
    place = f"{message['broker']}:{message['queue']}:{message['offset']}"
    stored, body = output.written_time(message["stored_at_ms"]), output.body_text(message)
    parts = stored, place, message["msg_id"], message["tags"] or "-", message["keys"] or "-", body
    return printable_lines("  ".join(parts))


def _complain(where: str, error: RmqdError) -> None:
    output.say([f"rmqd: {where}: {error}; retrying every second"], err=True)
