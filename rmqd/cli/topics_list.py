"""`rmqd topics list`: lists all topics of a cluster, one per line."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rmqd.cli.against_cluster import Asked, against_cluster
from rmqd.cli.look import WithSystem, look
from rmqd.cli.render import say_json, say_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.looks.topics import TopicSummary
    from rmqd.errors import RmqdError

HELP = """\
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
        from rmqd.client.looks.topics import list_topics

        return await list_topics(brokers, namespace=namespace, with_system=with_system)

    look(asked.target(), ask, _as_json if asked.as_json else _as_table)


def _as_json(topics: list[TopicSummary]) -> None:
    say_json([asdict(topic) for topic in topics])


def _as_table(topics: list[TopicSummary]) -> None:
    rows = [
        (one.topic, str(one.queues), one.permissions or "-", one.message_type or "-", ",".join(one.brokers))
        for one in topics
    ]
    say_table(("topic", "queues", "may", "type", "brokers"), rows)
