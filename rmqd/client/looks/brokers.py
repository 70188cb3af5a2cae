"""The masters of a cluster, queried in parallel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from rmqd.client.api.admin import cluster_info
from rmqd.client.group_lag import MAX_QUESTIONS
from rmqd.errors import BrokerAwayError, NoBrokerError, RmqdError

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.wire.bodies.cluster import ClusterInfo
    from rmqd.wire.message_queue import MessageQueue

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """The masters' responses by broker name, and the errors of the others."""

    by_broker: Mapping[str, T]
    errors: Mapping[str, RmqdError]


@dataclass(frozen=True, slots=True)
class QueueAnswers(Generic[T]):
    """The masters' responses about queues, and the errors of the others."""

    by_queue: Mapping[MessageQueue, T]
    errors: Mapping[MessageQueue, RmqdError]


class Brokers:
    """The masters of a cluster by broker name. At most 32 requests are sent at once."""

    def __init__(self, client: ClientInstance, cluster: ClusterInfo) -> None:
        brokers = dict(sorted(cluster.broker_addr_table.items()))
        self.client = client
        self.clusters = frozenset(cluster.cluster_addr_table)
        self.masters = {name: broker.master for name, broker in brokers.items() if broker.master is not None}
        self.names = {address: name for name, broker in brokers.items() for address in broker.broker_addrs.values()}
        """Broker names by the addresses of masters and slaves."""
        self._turn = asyncio.Semaphore(MAX_QUESTIONS)

    @classmethod
    async def look_up(cls, client: ClientInstance) -> Self:
        """Ask a name server for the masters. Brokers without a master are omitted.

        Raises NoBrokerError if there is none, and other RemotingErrors if no name server answers.
        """
        found = cls(client, await client.name_servers.ask(lambda address: cluster_info(client.remoting, address)))
        if not found.masters:
            raise NoBrokerError(";".join(client.name_servers.addresses))
        return found

    async def ask(self, question: Callable[[str], Awaitable[T]], names: Iterable[str] | None = None) -> Answers[T]:
        """Send the same request to the masters of these brokers, or of all. `question` is called with each address."""
        asked = list(self.masters if names is None else names)
        answers = await asyncio.gather(*(self._ask(question, self.masters[name]) for name in asked))
        named = dict(zip(asked, answers, strict=True))
        return Answers(
            {name: answer for name, answer in named.items() if not isinstance(answer, RmqdError)},
            {name: answer for name, answer in named.items() if isinstance(answer, RmqdError)},
        )

    async def ask_about(
        self, queues: Iterable[MessageQueue], question: Callable[[str, MessageQueue], Awaitable[T]]
    ) -> QueueAnswers[T]:
        """Ask each queue's master about it. If a broker has no master now, the response is BrokerAwayError."""
        asked = list(queues)
        answers = await asyncio.gather(*(self._ask_about(question, queue) for queue in asked))
        named = dict(zip(asked, answers, strict=True))
        return QueueAnswers(
            {queue: answer for queue, answer in named.items() if not isinstance(answer, RmqdError)},
            {queue: answer for queue, answer in named.items() if isinstance(answer, RmqdError)},
        )

    async def _ask_about(
        self, question: Callable[[str, MessageQueue], Awaitable[T]], queue: MessageQueue
    ) -> T | RmqdError:
        address = self.masters.get(queue.broker_name)
        if address is None:
            return BrokerAwayError(queue.topic, queue.broker_name)
        return await self._ask(lambda address: question(address, queue), address)

    async def _ask(self, question: Callable[[str], Awaitable[T]], address: str) -> T | RmqdError:
        async with self._turn:
            try:
                return await question(address)
            except RmqdError as error:
                return error
