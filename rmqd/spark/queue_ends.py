"""Queries first and next offsets of queues, with one request for all queues of a topic if the broker supports that.

A query asks every 100 or 200 ms, even when idle: for a topic with 1,000 queues that would be 10,000 requests a second.
Some brokers refuse requests about a topic (access control, a proxy), and are asked for each queue. Only masters are
asked about a topic; a slave is asked about a queue, if its answer is acceptable.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from rmqd.broker_errors import BrokerError
from rmqd.client.api.admin import topic_stats
from rmqd.client.api.offset import get_max_offset, get_min_offset
from rmqd.errors import ProtocolError
from rmqd.spark.answers import AWAY, Answers

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient
    from rmqd.wire.bodies.stats import TopicOffset
    from rmqd.wire.message_queue import MessageQueue

T = TypeVar("T")
Ask = Callable[["RemotingClient", str, "MessageQueue"], Awaitable[T]]

SINGLY_SECONDS: Final = 60.0
"""How long queues are queried one by one after their broker failed to answer for the topic."""


class AskBrokers(Protocol):
    """Sends a request to each queue's broker."""

    async def __call__(self, queues: Iterable[MessageQueue], ask: Ask[T], *, of_slaves: bool) -> Answers[T]:
        """Return the answers; with `of_slaves`, a slave's if no route names a master."""


class QueueEnds:
    """The ends of one cluster's queues."""

    def __init__(self, ask_brokers: AskBrokers) -> None:
        self._ask_brokers = ask_brokers
        self._singly_since: dict[tuple[str, str], float] = {}  # key: broker and topic

    async def first(self, queues: Iterable[MessageQueue]) -> Answers[int]:
        """Return the offsets of the oldest messages; 0 for a queue that never had messages."""
        return await self._each_broker(queues, attrgetter("min_offset"), _first_of_one, of_slaves=False)

    async def next(self, queues: Iterable[MessageQueue], *, of_slaves: bool) -> Answers[int]:
        """Return the offsets of the next messages. With `of_slaves`, a slave is asked if there is no master."""
        return await self._each_broker(queues, attrgetter("max_offset"), get_max_offset, of_slaves=of_slaves)

    async def _each_broker(
        self, queues: Iterable[MessageQueue], pick: Callable[[TopicOffset], int], singly: Ask[int], *, of_slaves: bool
    ) -> Answers[int]:
        together: dict[tuple[str, str], list[MessageQueue]] = {}
        for queue in queues:
            together.setdefault((queue.broker_name, queue.topic), []).append(queue)
        answers: Answers[int] = Answers()

        async def of_broker(group: list[MessageQueue]) -> None:
            left = await self._by_topic(group, pick, answers)
            one_by_one = await self._ask_brokers(left, singly, of_slaves=of_slaves)
            answers.found.update(one_by_one.found)
            answers.failed.update(one_by_one.failed)

        await asyncio.gather(*map(of_broker, together.values()))
        return answers

    async def _by_topic(
        self, queues: list[MessageQueue], pick: Callable[[TopicOffset], int], answers: Answers[int]
    ) -> list[MessageQueue]:
        """Query the queues of one topic on one broker together. Return the queues without an answer."""
        key = queues[0].broker_name, queues[0].topic
        if len(queues) == 1 or time.monotonic() - self._singly_since.get(key, -math.inf) < SINGLY_SECONDS:
            return queues
        told = await self._ask_brokers(queues[:1], _of_topic, of_slaves=False)
        for error in told.failed.values():
            if not isinstance(error, AWAY):
                self._singly_since[key] = time.monotonic()
            if isinstance(error, (*AWAY, BrokerError, ProtocolError)):
                return queues
            answers.failed.update(dict.fromkeys(queues, error))  # the broker would not answer for each queue either
            return []
        (table,) = told.found.values()
        answers.found.update({queue: pick(table[queue]) for queue in queues if queue in table})
        left = [queue for queue in queues if queue not in table]
        if left:
            self._singly_since[key] = time.monotonic()
        return left


async def _of_topic(remoting: RemotingClient, address: str, queue: MessageQueue) -> dict[MessageQueue, TopicOffset]:
    return (await topic_stats(remoting, address, queue.topic)).offset_table


async def _first_of_one(remoting: RemotingClient, address: str, queue: MessageQueue) -> int:
    return max(0, await get_min_offset(remoting, address, queue))  # -1: the queue never had messages
