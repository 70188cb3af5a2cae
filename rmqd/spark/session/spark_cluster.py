"""A RocketMQ client for Spark's synchronous code. Each process has one client for each ClientAccess, in a thread.

Spark calls sources synchronously, in processes that it forks and reuses. A process creates a client on first use, and
keeps the client for the next batch. A process that is forked later creates a new client.

A streaming query needs the maximum offsets of its queues every 100 or 200 ms, even when idle. One request per queue
would be 10,000 requests a second for 1,000 queues. So one request to a broker covers all queues of a topic. If a broker
refuses requests about a topic (access control, a proxy), the client sends a request for each queue. Requests about a
topic are sent only to masters. A request about one queue may be sent to a slave if the caller accepts an old value.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, Final, TypeVar

from rmqd.client.api.admin_requests import topic_list
from rmqd.client.api.group_requests import get_consumer_list, subscription_group
from rmqd.client.api.offset_requests import (
    get_max_offset,
    query_consumer_offset,
    search_offset,
    store_time_at,
    update_consumer_offset,
)
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.route_table import RouteTable
from rmqd.consumer.health.consistency import check_filters, check_topic_types
from rmqd.errors import LightQueueError, ProtocolError, RmqdError, RouteNotFoundError, StaticTopicError
from rmqd.errors.broker_errors import BrokerError, RequestCodeNotSupportedError
from rmqd.runtime.plain_text import duration
from rmqd.spark.session.queue_queries import (
    UNAVAILABLE_ERRORS,
    MasterMissingError,
    QueueQuery,
    QueueResponses,
    create_retry_topic,
    existing_values_or_raise,
    first_offset,
    mean_message_size,
    pending_reset_offset,
    topic_offset_table,
)
from rmqd.spark.session.queue_range import Replica
from rmqd.spark.session.spark_access import ClientAccess
from rmqd.spark.session.spark_process import log_to_stderr
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.bodies.stats_bodies import TopicOffset
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_light_queue

T = TypeVar("T")

MANY_QUEUES_TIMEOUT_SECONDS: Final = 20.0  # time limit of a call for many queues; a single request has a limit of 3 s
ROUTE_REFRESH_SECONDS: Final = 1.0
SINGLE_QUEUE_QUERIES_SECONDS: Final = 60.0
"""How long the client sends a request for each queue after a broker failed to answer a request about the topic."""

_clusters: dict[tuple[int, ClientAccess], SparkCluster] = {}
_lock = threading.Lock()


def cluster_of(access: ClientAccess) -> SparkCluster:
    """Return this process's client for `access`. Raises RmqdError if a required secret or file is missing."""
    with _lock:
        key = os.getpid(), access
        if key not in _clusters:
            _clusters[key] = SparkCluster(access)
        return _clusters[key]


def close_clusters() -> None:
    """Close all clients of this process. A later `cluster_of` creates new clients."""
    with _lock:
        for key in [key for key in _clusters if key[0] == os.getpid()]:
            _clusters.pop(key).close()


class SparkCluster:
    """A RocketMQ client for synchronous code.

    Methods block, and may be called in any thread. They raise RmqdError, or return errors by queue in `QueueResponses`.
    """

    def __init__(self, access: ClientAccess) -> None:
        log_to_stderr()
        options = access.client_options()
        self._refreshed_at: dict[str, float] = {}
        self._loop = asyncio.new_event_loop()
        # a daemon thread, because Spark ends its Python processes without notice
        self._thread = threading.Thread(target=self._loop.run_forever, name="rmqd.spark", daemon=True)
        self._thread.start()
        self._client = self._run(make_client(options))
        self._singly_since: dict[tuple[str, str], float] = {}  # when requests about a topic failed, by broker and topic
        self._of_known_kind: set[str] = set()  # topics whose type is already checked

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def topics(self) -> tuple[str, ...]:
        client = self._client
        return self._run(client.name_servers.ask(lambda address: topic_list(client.remoting, address)))

    def queues(self, topics: Iterable[str]) -> QueueResponses[list[MessageQueue]]:
        """Return each topic's readable queues in its current route. A topic's key is `MessageQueue(topic, "", -1)`."""
        keys = [MessageQueue(topic, "", -1) for topic in topics]
        return self._run(self._each(keys, lambda queue: self._queues_of(queue.topic)))

    def known_replicas(self, queue: MessageQueue) -> tuple[Replica, ...]:
        """Return the known replicas of a queue's broker, the master first; empty if no replica is known."""
        with contextlib.suppress(RmqdError):
            self._run(self._know_master(queue))
        known = self._client.routes.brokers().get(queue.broker_name, {})
        return tuple(Replica(*each) for each in sorted(known.items()))

    def current_replicas(self, queue: MessageQueue) -> tuple[Replica, ...]:
        """Return the replicas of a queue's broker, as the module's function `current_replicas` does."""
        return self._run(current_replicas(self._client.routes, queue))

    def min_offsets(self, queues: Iterable[MessageQueue]) -> QueueResponses[int]:
        """Return the offset of each queue's oldest message; 0 for a queue that never had messages."""
        return self._run(self._ends(queues, attrgetter("min_offset"), first_offset, of_slaves=False))

    def max_offsets(self, queues: Iterable[MessageQueue], *, of_slaves: bool = False) -> QueueResponses[int]:
        """Return the offset of each queue's next message. With `of_slaves`, query a slave if there is no master."""
        return self._run(self._ends(queues, attrgetter("max_offset"), get_max_offset, of_slaves=of_slaves))

    def begin_max_offsets(self, queues: Iterable[MessageQueue]) -> Future[QueueResponses[int]]:
        """Send the requests of `max_offsets` with `of_slaves=True`, without waiting for the responses."""
        return self._begin(self._ends(queues, attrgetter("max_offset"), get_max_offset, of_slaves=True))

    def offsets_at_times(self, times_ms: Mapping[MessageQueue, int]) -> QueueResponses[int]:
        """Return the offset of each queue's first message stored at or after its time, in milliseconds since 1970."""
        return self._with_values(times_ms, search_offset)

    def store_times_ms(self, offsets: Mapping[MessageQueue, int]) -> QueueResponses[int]:
        """Return the store times of the messages at `offsets`, in milliseconds since 1970; -1 for a missing message."""
        return self._with_values(offsets, store_time_at)

    def committed_offsets(self, group: str, queues: Iterable[MessageQueue]) -> QueueResponses[int | None]:
        """Return a group's committed offsets; None for queues without a committed offset."""
        errors: dict[str, asyncio.Future[RmqdError | None]] = {}  # broker address -> why the broker refuses

        async def ask(remoting: RemotingClient, address: str, queue: MessageQueue) -> int | None:
            # brokers accept no offsets of unknown groups; this request creates the group if the broker permits that
            if address not in errors:
                answer = errors[address] = asyncio.get_running_loop().create_future()
                try:
                    answer.set_result(await _refused(subscription_group(remoting, address, group)))
                finally:
                    answer.cancel()  # no effect after set_result; otherwise the other queues would wait forever
            if (error := await errors[address]) is not None:
                raise error
            return await query_consumer_offset(remoting, address, group, queue)

        return self._at_broker(queues, ask)

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> QueueResponses[bool]:
        """Commit a group's offsets, and wait for the brokers' responses."""
        return self._with_values(
            offsets, lambda remoting, address, queue, at: update_consumer_offset(remoting, address, group, queue, at)
        )

    def members(self, group: str, queues: Iterable[MessageQueue]) -> frozenset[str]:
        """Return the client ids of a group's members, as the brokers of `queues` list them.

        Brokers that do not answer are ignored. Raises RmqdError if no broker answers.
        """
        by_broker = {queue.broker_name: queue for queue in queues}
        answers = self._at_broker(
            by_broker.values(), lambda remoting, address, _: get_consumer_list(remoting, address, group)
        )
        found = answers.values or existing_values_or_raise(answers)
        return frozenset(client_id for client_ids in found.values() for client_id in client_ids)

    def make_retry_topic(self, group: str, queues: Iterable[MessageQueue]) -> QueueResponses[None]:
        """Create a group's retry topic on the brokers of `queues`. The result has one of the queues for each broker."""
        by_broker = {queue.broker_name: queue for queue in queues}
        topics = sorted({queue.topic for queue in by_broker.values()})
        client_id = self._client.client_id
        return self._at_broker(
            by_broker.values(),
            lambda remoting, address, _: create_retry_topic(remoting, address, client_id, group, topics),
        )

    def pending_resets(self, group: str, offsets: Mapping[MessageQueue, int]) -> QueueResponses[int | None]:
        """Return the target of each queue's pending reset, or None. `offsets` are the group's current offsets."""
        return self._with_values(
            offsets, lambda remoting, address, queue, at: pending_reset_offset(remoting, address, group, queue, at)
        )

    def mean_sizes(self, starts: Mapping[MessageQueue, int]) -> QueueResponses[float]:
        """Return the mean size in bytes of each queue's next messages from its offset in `starts`."""
        return self._with_values(starts, mean_message_size, of_slaves=True)

    def check_filters(self, group: str, subscriptions: Sequence[SubscriptionData]) -> None:
        """Let brokers check SQL filters. In a pull, an invalid filter is not an error, but lets every message pass."""
        self._run(check_filters(self._client, group, subscriptions))

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        if is_light_queue(topic):
            raise LightQueueError(topic)
        route = await self._client.routes.refresh(topic)
        if route.mappings:
            raise StaticTopicError(topic)
        if topic not in self._of_known_kind:
            await check_topic_types(self._client, [topic])
            self._of_known_kind.add(topic)
        return self._client.routes.queues(topic)

    def _with_values(
        self,
        values: Mapping[MessageQueue, int],
        ask: Callable[[RemotingClient, str, MessageQueue, int], Awaitable[T]],
        *,
        of_slaves: bool = False,
    ) -> QueueResponses[T]:
        """Call `ask` with the value of each queue, like `_asked`, and wait for the responses."""
        return self._at_broker(
            values, lambda remoting, address, queue: ask(remoting, address, queue, values[queue]), of_slaves=of_slaves
        )

    def _at_broker(
        self, queues: Iterable[MessageQueue], ask: QueueQuery[T], *, of_slaves: bool = False
    ) -> QueueResponses[T]:
        """Call `ask` for each queue, like `_asked`, and wait for the responses."""
        return self._run(self._asked(queues, ask, of_slaves=of_slaves))

    async def _ends(
        self,
        queues: Iterable[MessageQueue],
        pick: Callable[[TopicOffset], int],
        singly: QueueQuery[int],
        *,
        of_slaves: bool,
    ) -> QueueResponses[int]:
        """Query the minimum or maximum offsets: with one request per topic and broker, or one by one if that fails."""
        together: dict[tuple[str, str], list[MessageQueue]] = {}
        for queue in queues:
            together.setdefault((queue.broker_name, queue.topic), []).append(queue)
        answers: QueueResponses[int] = QueueResponses()

        async def of_broker(group: list[MessageQueue]) -> None:
            left = await self._ends_by_topic(group, pick, answers)
            one_by_one = await self._asked(left, singly, of_slaves=of_slaves)
            answers.values.update(one_by_one.values)
            answers.errors.update(one_by_one.errors)

        await asyncio.gather(*map(of_broker, together.values()))
        return answers

    async def _ends_by_topic(
        self, queues: list[MessageQueue], pick: Callable[[TopicOffset], int], answers: QueueResponses[int]
    ) -> list[MessageQueue]:
        """Query one topic's queues on one broker with one request. Return the queues to query one by one."""
        key = queues[0].broker_name, queues[0].topic
        if len(queues) == 1 or time.monotonic() - self._singly_since.get(key, -math.inf) < SINGLE_QUEUE_QUERIES_SECONDS:
            return queues
        told = await self._asked(queues[:1], topic_offset_table, of_slaves=False)
        for error in told.errors.values():
            if not isinstance(error, UNAVAILABLE_ERRORS):
                self._singly_since[key] = time.monotonic()
            if isinstance(error, (*UNAVAILABLE_ERRORS, BrokerError, ProtocolError)):
                return queues
            answers.errors.update(dict.fromkeys(queues, error))  # requests for single queues would fail as well
            return []
        (table,) = told.values.values()
        answers.values.update({queue: pick(table[queue]) for queue in queues if queue in table})
        left = [queue for queue in queues if queue not in table]
        if left:
            self._singly_since[key] = time.monotonic()
        return left

    async def _asked(self, queues: Iterable[MessageQueue], ask: QueueQuery[T], *, of_slaves: bool) -> QueueResponses[T]:
        """Call `ask` with the address of each queue's master; with `of_slaves`, of a slave if there is no master.

        A slave may lag behind its master. So a slave's offsets could look like a reset by an operator, or hide messages
        of the master, and offsets committed to a slave are lost when the master returns.
        """

        async def at_broker(queue: MessageQueue) -> T:
            remoting = self._client.remoting
            address = await self._address(queue, of_slaves=of_slaves)
            try:
                return await ask(remoting, address, queue)
            except RmqdError:
                # the route may be outdated: the broker may have a new address
                await self._client.routes.refresh(queue.topic)
                other = await self._address(queue, of_slaves=of_slaves)
                if other == address:
                    raise
                return await ask(remoting, other, queue)

        return await self._each(queues, at_broker)

    async def _address(self, queue: MessageQueue, *, of_slaves: bool) -> str:
        routes, name = self._client.routes, queue.broker_name
        await self._know_master(queue)
        address = routes.address(name) if of_slaves else routes.master(name)
        if address is not None:
            return address
        if routes.address(name) is not None:
            raise MasterMissingError(name, "no name server has a route to its master, which is down or being replaced")
        raise RouteNotFoundError(queue.topic, f"no address is known for broker {name}")

    async def _know_master(self, queue: MessageQueue) -> None:
        """Look up the route of a queue's topic. While the route lacks the master, refresh it once a second."""
        routes, topic, now = self._client.routes, queue.topic, time.monotonic()
        await routes.lookup(topic)
        if (
            routes.master(queue.broker_name) is None
            and now - self._refreshed_at.get(topic, -math.inf) >= ROUTE_REFRESH_SECONDS
        ):
            self._refreshed_at[topic] = now
            await routes.refresh(topic)

    @staticmethod
    async def _each(queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]) -> QueueResponses[T]:
        answers: QueueResponses[T] = QueueResponses()

        async def one(queue: MessageQueue) -> None:
            try:
                answers.values[queue] = await ask(queue)
            except RmqdError as error:
                answers.errors[queue] = error

        await asyncio.gather(*map(one, queues))
        return answers

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._begin(work)
        try:
            return future.result(MANY_QUEUES_TIMEOUT_SECONDS)
        except TimeoutError:
            future.cancel()
            raise RmqdError(f"RocketMQ did not answer within {duration(MANY_QUEUES_TIMEOUT_SECONDS)}") from None

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


async def _refused(asking: Awaitable[object]) -> RmqdError | None:
    try:
        await asking
    except RequestCodeNotSupportedError:  # a broker before 5.0 creates the group later
        return None
    except RmqdError as error:
        return error
    return None


def values_or_raise(answers: QueueResponses[T]) -> dict[MessageQueue, T]:
    """Return the values of all queues. Raises the first error if a queue has an error."""
    for error in answers.errors.values():
        raise error
    return answers.values


async def current_replicas(routes: RouteTable, queue: MessageQueue) -> tuple[Replica, ...]:
    """Refresh the topic's route, and return the replicas of the queue's broker.

    Return () if the topic has no route, or if the route lacks the broker. Raises RmqdError if no name server answers.
    """
    try:
        route = await routes.refresh(queue.topic)
    except RouteNotFoundError:
        return ()
    brokers = [broker for broker in route.broker_datas if broker.broker_name == queue.broker_name]
    return tuple(Replica(*each) for broker in brokers for each in sorted(broker.broker_addrs.items()))


async def make_client(options: ClientOptions) -> ClientInstance:
    """Create a client. This function is asynchronous because the client needs a running event loop."""
    return ClientInstance(options)
