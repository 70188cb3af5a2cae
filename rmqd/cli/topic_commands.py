"""`rmqd topics list`: lists all topics of a cluster, one per line.

`rmqd topics show`: shows one topic, its queues, and the groups that read it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.terminal.cluster_command import WithSystem, run_query, wrapped
from rmqd.cli.terminal.output import count, say, say_json, say_table, written_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.brokers import Brokers
    from rmqd.errors import RmqdError
    from rmqd.operate.queries.topic_queries import TopicDetail, TopicSummary


TOPICS_LIST_HELP = """\
Retry topics, dead letters and RocketMQ's own topics are only shown with --all. TYPE is - if a topic has none.

Example: rmqd topics list --nameserver 10.0.0.5:9876
"""


@against_cluster
def list_topics(
    asked: Asked,
    with_system: WithSystem = False,
) -> None:
    """List the topics of a cluster."""

    async def ask(brokers: Brokers, namespace: str) -> tuple[list[TopicSummary], Mapping[str, RmqdError]]:
        from rmqd.operate.queries.topic_queries import list_topics

        return await list_topics(brokers, namespace=namespace, with_system=with_system)

    run_query(asked.target(), ask, _as_json if asked.as_json else _as_table)


def _as_json(topics: list[TopicSummary]) -> None:
    say_json([asdict(topic) for topic in topics])


def _as_table(topics: list[TopicSummary]) -> None:
    rows = [
        (one.topic, str(one.queues), one.permissions or "-", one.message_type or "-", ",".join(one.brokers))
        for one in topics
    ]
    say_table(("topic", "queues", "may", "type", "brokers"), rows)


TOPICS_SHOW_HELP = """\
LAST STORED is the store time of a queue's last message, in UTC.

Example: rmqd topics show orders -o json
"""


@against_cluster
def show_topic(
    asked: Asked,
    topic: Annotated[str, typer.Argument(help="The topic's name")],
) -> None:
    """Show one topic."""

    async def ask(brokers: Brokers, namespace: str) -> tuple[TopicDetail, Mapping[str, RmqdError]]:
        from rmqd.operate.queries.topic_queries import show_topic

        return await show_topic(brokers, wrapped(topic, namespace))

    run_query(asked.target(), ask, (lambda detail: say_json(asdict(detail))) if asked.as_json else _as_tables)


def _as_tables(detail: TopicDetail) -> None:
    say([f"{detail.topic}  {count(detail.messages, 'message')} in {count(len(detail.queues), 'queue')}", ""])
    say_table(
        ("broker", "read queues", "write queues", "may", "attributes"),
        [
            (
                name,
                str(one.read_queues),
                str(one.write_queues),
                one.permissions or "-",
                ", ".join(f"{key}={value}" for key, value in sorted(one.attributes.items())) or "-",
            )
            for name, one in detail.brokers.items()
        ],
    )
    say([""])
    say_table(
        ("broker", "queue", "min", "max", "last stored"),
        [
            (one.broker, str(one.queue), str(one.min), str(one.max), written_time(one.last_stored_ms))
            for one in detail.queues
        ],
    )
    say(["", f"read by {', '.join(detail.groups)}" if detail.groups else "no group reads it"])
