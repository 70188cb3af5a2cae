"""`rmqd topics list` and `rmqd topics show`."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from rmqd.cli.terminal.cluster_command import ClusterOptions
from rmqd.cli.terminal.options import TopicName, WithSystem
from rmqd.cli.terminal.output import Columns, count, say, say_table
from rmqd.runtime.lazy_imports import import_lazily

with import_lazily():
    from rmqd.operate.queries import topic_queries

_TOPICS: Final[Columns] = ("topic", "queues", ("may", "permissions"), ("type", "message_type"), "brokers")
_BROKERS: Final[Columns] = (
    "broker",
    ("read queues", "read_queues"),
    ("write queues", "write_queues"),
    ("may", "permissions"),
    ("attributes", lambda one: ", ".join(f"{key}={value}" for key, value in sorted(one["attributes"].items())) or "-"),
)
_QUEUES: Final[Columns] = ("broker", "queue", "min", "max", ("last stored", "last_stored_ms"))


def list_topics(cluster: ClusterOptions, with_system: WithSystem = False) -> None:
    """List the topics of a cluster: their queues, permissions, types and brokers.

    Retry topics, dead letters and RocketMQ's own topics are only shown with --all. TYPE is - if a topic has none.

    Example: rmqd topics list --nameserver 10.0.0.5:9876
    """
    target = cluster.target()
    ask = partial(topic_queries.list_topics, namespace=target.options.namespace, with_system=with_system)
    cluster.show(target, ask, partial(say_table, _TOPICS))


def show_topic(cluster: ClusterOptions, topic: TopicName) -> None:
    """Show one topic: its queues with first and last offsets, the groups that read it, and its settings.

    LAST STORED is the store time of a queue's last message, in UTC.

    Example: rmqd topics show orders -o json
    """
    target = cluster.target()
    cluster.show(target, lambda brokers: topic_queries.show_topic(brokers, target.with_namespace(topic)), _say_topic)


def _say_topic(topic: dict[str, Any]) -> None:
    say([f"{topic['topic']}  {count(topic['messages'], 'message')} in {count(len(topic['queues']), 'queue')}", ""])
    say_table(_BROKERS, ({"broker": name} | settings for name, settings in topic["brokers"].items()))
    say([""])
    say_table(_QUEUES, topic["queues"])
    say(["", f"read by {', '.join(topic['groups'])}" if topic["groups"] else "no group reads it"])
