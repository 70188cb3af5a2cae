"""`rmqd offsets show`: shows a group's committed offset in each queue, between the queue's ends."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.cluster import wrapped
from rmqd.cli.lag import format_age
from rmqd.cli.look import look
from rmqd.cli.render import say_json, say_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.group_lag import TopicLag
    from rmqd.client.looks.brokers import Brokers
    from rmqd.errors import RmqdError

HELP = """\
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
        from rmqd.client.group_lag import LagReader, read_lags
        from rmqd.clock import SystemClock

        reader, name = LagReader(brokers.client, SystemClock()), wrapped(group, namespace)
        if topic is not None:
            return [await reader.topic_lag(name, wrapped(topic, namespace))], {}
        return await read_lags(reader, {name: None})

    target = asked.target(group)
    look(target, ask, _as_json if asked.as_json else _as_table)


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
