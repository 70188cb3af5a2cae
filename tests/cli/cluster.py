"""An embedded broker for commands. Functions create its topics, groups and offsets, without members of groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rmqd.testing import RocketMQ
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, TopicConfig
from rmqd.wire.topics import dlq_topic
from tests.cli.command import Ended
from tests.cli.in_process import rmqd

QUEUES = 4


class Cluster(RocketMQ):
    """A name server and a broker in a thread of this process, and the commands about them."""

    def ask(self, *arguments: str | Path, stdin: bytes = b"") -> Ended:
        """Run a command on this cluster."""
        return rmqd(*arguments, "-n", self.nameserver, stdin=stdin)

    def json(self, *arguments: str | Path) -> Any:
        """Run a command that must succeed, and return its JSON."""
        ended = self.ask(*arguments, "-o", "json")
        assert ended.code == 0, ended.err
        return ended.json()

    def fill(self, topic: str, each: int, **more: Any) -> None:
        """Create a topic of four queues with `each` messages in each queue. The keys are m0, m1, ..."""
        self.create_topic(topic, QUEUES)
        for number in range(QUEUES * each):
            self.send(topic, f"body {number}", keys=f"m{number}", queue_id=number % QUEUES, **more)

    def change_topic(self, topic: str, permission: int) -> None:
        """Change a topic's permission: 2 is write-only, 4 is read-only."""
        config = TopicConfig(topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=permission)
        self._do(lambda: self._embedded.broker.topics.put(config))

    def make_group(self, group: str, **settings: Any) -> None:
        """Create a group with some settings changed."""
        config = SubscriptionGroupConfig(group_name=group, **settings)
        self._do(lambda: self._embedded.broker.groups.put(config))

    def change_broker(self, **settings: Any) -> None:
        """Change some of the broker's settings."""
        broker = self._embedded.broker
        self._do(lambda: broker.change_settings(replace(broker.settings, **settings)))

    def knows_group(self, group: str) -> bool:
        """Whether the broker knows a group. The query does not create it."""
        return self._do(lambda: self._embedded.broker.groups.get(group) is not None)

    def has_topic(self, topic: str) -> bool:
        """Whether the broker has a topic."""
        return self._do(lambda: self._embedded.broker.topics.get(topic) is not None)

    def commit(self, group: str, topic: str, *offsets: int) -> None:
        """Store a group's offsets of the queues 0, 1, ..., as its members do."""
        self.make_group(group)

        def commit() -> None:
            for queue_id, offset in enumerate(offsets):
                self._embedded.broker.offsets.commit(group, topic, queue_id, offset)

        self._do(commit)

    def give_up(self, group: str, topic: str, *keys: str) -> None:
        """Add messages with these keys to a group's dead letters."""
        self.make_group(group)
        if not self.has_topic(dlq_topic(group)):
            self.create_topic(dlq_topic(group), 1)
        for key in keys:
            properties = {"RETRY_TOPIC": topic, "RMQD_REASON": f"bad {key}"}
            self.send(dlq_topic(group), f"of {key}", keys=key, queue_id=0, properties=properties)
