"""Requests to all brokers of a cluster: the masters are queried in parallel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar, TypeVarTuple

from rmqd.client.api.admin_requests import cluster_info
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.errors import BrokerUnknownError, NoBrokerError, RmqdError
from rmqd.wire.bodies.route_data import ClusterInfo
from rmqd.wire.message_queue import MessageQueue

MAX_REQUESTS_IN_FLIGHT: Final = 32  # to all brokers together, to limit the load on a large cluster

K = TypeVar("K")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class BrokerResponses(Generic[K, T]):
    """The results of a request to several brokers: responses (`found`) and errors, each by broker name or by queue."""

    found: Mapping[K, T]
    errors: Mapping[K, RmqdError]


class Brokers:
    """The masters of a cluster by broker name. At most 32 requests to them are in flight at once."""

    def __init__(self, client: ClientInstance, masters: Mapping[str, str] | None = None) -> None:
        """`masters` are known addresses by broker name. Without `masters`, call `learn` before the first request."""
        self.client = client
        self.masters: Mapping[str, str] = masters or {}
        self.names: Mapping[str, str] = {}
        """The broker's name for each address of a master or slave; empty before `learn`."""
        self.clusters = frozenset[str]()
        self._turn = asyncio.Semaphore(MAX_REQUESTS_IN_FLIGHT)

    @classmethod
    async def from_name_server(cls, client: ClientInstance) -> Self:
        """Ask a name server for the cluster's brokers, and return a `Brokers` with their masters.

        Raises NoBrokerError if no broker has a master, and another RemotingError if no name server answers.
        """
        found = cls(client)
        await found.load_cluster_info()
        if not found.masters:
            raise NoBrokerError(";".join(client.name_servers.addresses))
        return found

    async def load_cluster_info(self) -> ClusterInfo:
        """Ask a name server for the cluster, and set `masters`, `names` and `clusters`. Raises RemotingError."""
        client = self.client
        info = await client.name_servers.ask(lambda address: cluster_info(client.remoting, address))
        brokers = dict(sorted(info.broker_addr_table.items()))
        self.clusters = frozenset(info.cluster_addr_table)
        self.masters = {name: broker.master for name, broker in brokers.items() if broker.master is not None}
        self.names = {address: name for name, broker in brokers.items() for address in broker.broker_addrs.values()}
        return info

    async def request_masters(
        self,
        request: Callable[[RemotingClient, str, *Ts], Awaitable[T]],
        *arguments: *Ts,
        names: Iterable[str] | None = None,
    ) -> BrokerResponses[str, T]:
        """Send the same request to the masters of the brokers in `names`, or of all brokers."""
        remoting, masters = self.client.remoting, self.masters
        return await self._each(
            masters if names is None else names, lambda name: request(remoting, masters[name], *arguments)
        )

    async def request_for_queues(
        self, queues: Iterable[MessageQueue], request: Callable[[str, MessageQueue], Awaitable[T]]
    ) -> BrokerResponses[MessageQueue, T]:
        """Send a request about each queue to its broker's master. Without a master, the error is BrokerAwayError."""

        async def request_masters(queue: MessageQueue) -> T:
            address = self.masters.get(queue.broker_name)
            if address is None:
                raise BrokerUnknownError(queue.topic, queue.broker_name)
            return await request(address, queue)

        return await self._each(queues, request_masters)

    async def in_turn(self, request: Awaitable[T]) -> T:
        """Wait until fewer than 32 requests are in flight. Then send the request and return its response."""
        async with self._turn:
            return await request

    async def _each(self, keys: Iterable[K], request: Callable[[K], Awaitable[T]]) -> BrokerResponses[K, T]:
        async def request_masters(key: K) -> T | RmqdError:
            try:
                return await self.in_turn(request(key))
            except RmqdError as error:
                return error

        asked = list(keys)
        answers = dict(zip(asked, await asyncio.gather(*map(request_masters, asked)), strict=True))
        return BrokerResponses(
            {key: answer for key, answer in answers.items() if not isinstance(answer, RmqdError)},
            {key: answer for key, answer in answers.items() if isinstance(answer, RmqdError)},
        )
