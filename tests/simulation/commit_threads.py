"""How a broker processes the group's commits: in threads, and so in any order, some late, some never."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Final

from rmqd.broker.consumer_registry import ConsumerOffsetManager
from rmqd.broker.peer_channel import Answer, Channel, Processor, Refusal
from rmqd.codes import ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.messages.properties import PullSysFlag
from tests.simulation.judging.wrong import Wrong
from tests.simulation.names import GROUP, TOPIC

USUAL_SECONDS: Final = (0.0, 1.0)
PULL_SECONDS: Final = 1.0
"""The maximum delay of a pull that carries a commit: members wait for its messages."""
FIRST_SECONDS: Final = 0.01
"""How long a broker needs for a group's first commit of a topic, for which it creates a table."""


class CommitThreads:
    """Delays or refuses commits before a broker's processor handles them. Survives restarts of the broker."""

    def __init__(self, chance: random.Random, late: float) -> None:
        self.late = late
        """The share of commits that are processed late."""
        self.late_seconds = USUAL_SECONDS
        """The minimum and maximum delay."""
        self.refuses = False
        """Whether the broker refuses commits as busy."""
        self.waiting = 0
        """The number of commits that have arrived and are not processed yet."""
        self.waiting_pulls = 0
        """The number of pulls with a commit that have arrived and are not processed yet."""
        self.wrong: list[Wrong] = []
        self._chance = chance

    def before(self, processor: Processor, offsets: ConsumerOffsetManager) -> Processor:
        """Return the replacement for a broker's processor of commits."""
        firsts: set[Channel] = set()
        self.waiting = self.waiting_pulls = 0

        async def take_up_later(channel: Channel, request: RemotingCommand, seconds: float) -> Answer:
            self.waiting += 1
            await asyncio.sleep(seconds)
            self.waiting -= 1
            firsts.discard(channel)
            answer = processor(channel, request)
            return await answer if isinstance(answer, Awaitable) else answer

        def take_up(channel: Channel, request: RemotingCommand) -> Answer | Awaitable[Answer]:
            fields = request.ext_fields
            if (fields.get("topic"), fields.get("consumerGroup")) != (TOPIC, GROUP):
                return processor(channel, request)
            if self.refuses:
                raise Refusal(ResponseCode.SYSTEM_BUSY, "the broker's threads are busy")
            seconds = self._chance.uniform(*self.late_seconds) if self._chance.random() < self.late else 0.0
            if not offsets.queues(GROUP, TOPIC):
                if channel in firsts and not request.is_oneway:  # Java sends its first commits concurrently
                    self._note_lost(channel, fields["queueId"])
                firsts.add(channel)
                seconds += FIRST_SECONDS
            return take_up_later(channel, request, seconds) if seconds else processor(channel, request)

        return take_up

    def before_pull(self, processor: Processor) -> Processor:
        """Return the replacement for a broker's processor of pulls: pulls that carry a commit may be late."""

        async def take_up_later(channel: Channel, request: RemotingCommand, seconds: float) -> Answer:
            self.waiting_pulls += 1
            await asyncio.sleep(seconds)
            self.waiting_pulls -= 1
            answer = processor(channel, request)
            return await answer if isinstance(answer, Awaitable) else answer

        def take_up(channel: Channel, request: RemotingCommand) -> Answer | Awaitable[Answer]:
            fields = request.ext_fields
            carries = int(fields.get("sysFlag", "0")) & PullSysFlag.COMMIT_OFFSET
            if (fields.get("topic"), fields.get("consumerGroup")) != (TOPIC, GROUP) or not carries:
                return processor(channel, request)
            if self._chance.random() >= self.late:
                return processor(channel, request)
            return take_up_later(channel, request, min(PULL_SECONDS, self._chance.uniform(*self.late_seconds)))

        return take_up

    def _note_lost(self, channel: Channel, queue: str) -> None:
        """Record a lost commit: Java's broker creates a table for each first commit, and one replaces the other."""
        about = f"{channel.address} commits queue {queue} while its first commit of the topic is under way"
        self.wrong.append(Wrong("lost commit", about))
