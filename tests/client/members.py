"""A consumer group for tests of the client: it records notifications and answers requests."""

from __future__ import annotations

import asyncio

from rmqd.client.remoting.peer_requests import Reply
from rmqd.errors import RmqdError
from rmqd.wire.bodies.heartbeat_data import ConsumerData, SubscriptionData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.topics import retry_topic


class Member:
    """A group with one topic and its retry topic."""

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.ids_changed = asyncio.Event()
        self.asked: list[RemotingCommand] = []
        self.answer: Reply | RmqdError | None = None

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(self.group, (SubscriptionData(self.topic), SubscriptionData(retry_topic(self.group))))

    def on_consumer_ids_changed(self) -> None:
        self.ids_changed.set()

    async def on_request(self, command: RemotingCommand) -> Reply | None:
        self.asked.append(command)
        if isinstance(self.answer, RmqdError):
            raise self.answer
        return self.answer
