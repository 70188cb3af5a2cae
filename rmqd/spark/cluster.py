"""What the driver's side asks of a RocketMQ cluster: one client for each process and name server, in a loop thread.

Spark calls sources synchronously, in processes of its own that it forks and reuses. A client is made when it is first
asked for, and kept for the next batch; a process that was forked meanwhile makes another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import structlog

from rmqd.client.api.admin import topic_list
from rmqd.client.api.group import subscription_group
from rmqd.client.api.offset import (
    get_max_offset,
    get_min_offset,
    query_consumer_offset,
    search_offset,
    update_consumer_offset,
)
from rmqd.client.api.request import request
from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.client.route_table import RouteTable
from rmqd.codes import ResponseCode
from rmqd.consumer.filter_check import check_filters
from rmqd.consumer.pull_request import OPERATOR_RESET
from rmqd.errors import RmqdError, RouteNotFoundError
from rmqd.spark.access import Access
from rmqd.spark.process_log import log_to_stderr
from rmqd.spark.source.queue_range import Filter, Replica
from rmqd.wire.consume_queue import QueryConsumeQueueResponseBody
from rmqd.wire.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.headers.topic import QueryConsumeQueueRequestHeader
from rmqd.wire.heartbeat import EXPRESSION_TAG, SUBSCRIPTION_ALL, SubscriptionData
from rmqd.wire.message import MessageQueue
from rmqd.wire.sys_flag import PullSysFlag

log = structlog.get_logger(__name__)

T = TypeVar("T")

DEADLINE_SECONDS: Final = 20.0  # for what asks many queues, each request having its own 3 s
SAMPLE_MESSAGES: Final = 64
RETRY_SECONDS: Final = 0.5
PULLED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)

_clusters: dict[tuple[int, Access], Cluster] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """What was asked about each of many queues: the answers, and the errors of those that gave none."""

    found: dict[MessageQueue, T] = field(default_factory=dict)
    failed: dict[MessageQueue, RmqdError] = field(default_factory=dict)


def cluster_of(access: Access) -> Cluster:
    """This process's client of a cluster. Raises RmqdError where what it needs is not there."""
    with _lock:
        key = os.getpid(), access
        if key not in _clusters:
            _clusters[key] = Cluster(access)
        return _clusters[key]


def close_clusters() -> None:
    """End this process's clients; who asks for one later gets another."""
    with _lock:
        for key in [key for key in _clusters if key[0] == os.getpid()]:
            _clusters.pop(key).close()


class Cluster:
    """Every method may be called from any thread, blocks, and raises RmqdError, unless it gives `Answers`."""

    def __init__(self, access: Access) -> None:
        log_to_stderr()
        options = access.client_options()
        self._loop = asyncio.new_event_loop()
        # a daemon: Spark ends its Python processes without asking
        self._thread = threading.Thread(target=self._loop.run_forever, name="rmqd.spark", daemon=True)
        self._thread.start()
        self._client = self._run(_make_client(options))

    def close(self) -> None:
        """Close the connections and end the thread. Nothing may be asked any more."""
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def topics(self) -> tuple[str, ...]:
        """Every topic that the name server knows."""
        client = self._client
        return self._run(client.name_servers.ask(lambda address: topic_list(client.remoting, address)))

    def queues(self, topics: Iterable[str]) -> Answers[list[MessageQueue]]:
        """The readable queues of topics, as the name server tells them now; keyed by a queue of the topic's name."""
        return self._each([MessageQueue(topic, "", -1) for topic in topics], lambda queue: self._queues_of(queue.topic))

    def replicas(self, queue: MessageQueue) -> tuple[Replica, ...]:
        """The replicas of a queue's broker, the master first; empty where none is known."""
        with contextlib.suppress(RmqdError):
            self._run(self._client.routes.lookup(queue.topic))
        return replicas_of(self._client.routes, queue)

    def replicas_now(self, queue: MessageQueue) -> tuple[Replica, ...]:
        """The same, after asking the name server. Raises RmqdError where it does not answer."""
        self._run(self._client.routes.refresh(queue.topic))
        return replicas_of(self._client.routes, queue)

    def has_master(self, queue: MessageQueue) -> bool:
        """Whether what is asked about the queue is answered by its broker's master."""
        return self._client.routes.master(queue.broker_name) is not None

    def min_offsets(self, queues: Iterable[MessageQueue]) -> Answers[int]:
        """The offsets of the oldest messages."""

        async def ask(address: str, queue: MessageQueue) -> int:
            return max(0, await get_min_offset(self._client.remoting, address, queue))  # -1: nothing was ever stored

        return self._at_broker(queues, ask)

    def max_offsets(self, queues: Iterable[MessageQueue]) -> Answers[int]:
        """The offsets that the next messages will get."""
        return self._at_broker(queues, lambda address, queue: get_max_offset(self._client.remoting, address, queue))

    def offsets_at(self, times_ms: Mapping[MessageQueue, int]) -> Answers[int]:
        """The offsets of the first messages that were stored at a time (milliseconds since 1970) or later."""

        async def ask(address: str, queue: MessageQueue) -> int:
            return await search_offset(self._client.remoting, address, queue, times_ms[queue])

        return self._at_broker(times_ms, ask)

    def committed(self, group: str, queues: Iterable[MessageQueue]) -> Answers[int | None]:
        """A group's offsets; None where it never committed one."""

        async def ask(address: str, queue: MessageQueue) -> int | None:
            # where brokers make groups by themselves, this makes it: they take no offset of a group that is not there
            await subscription_group(self._client.remoting, address, group)
            return await query_consumer_offset(self._client.remoting, address, group, queue)

        return self._at_broker(queues, ask)

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> Answers[None]:
        """Commit a group's offsets, and wait for the brokers' answers."""

        async def ask(address: str, queue: MessageQueue) -> None:
            await update_consumer_offset(self._client.remoting, address, group, queue, offsets[queue])

        return self._at_broker(offsets, ask)

    def pending_resets(self, group: str, offsets: Mapping[MessageQueue, int]) -> Answers[int | None]:
        """Where an operator has sent a group that has not heard of it; None where it is not so. A broker tells once.

        Brokers of 5.x keep a reset until the queue is pulled, and ignore commits until then.
        """

        async def ask(address: str, queue: MessageQueue) -> int | None:
            header = PullMessageRequestHeader(
                consumer_group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=offsets[queue],
                max_msg_nums=1,
                sys_flag=PullSysFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                subscription=SUBSCRIPTION_ALL,
                sub_version=0,
                expression_type=EXPRESSION_TAG,
            )
            reply = await request(self._client.remoting, address, header, accepted=PULLED)
            if reply.code != ResponseCode.PULL_OFFSET_MOVED or reply.remark != OPERATOR_RESET:
                return None
            return PullMessageResponseHeader.from_ext_fields(reply.ext_fields).next_begin_offset

        return self._at_broker(offsets, ask)

    def mean_sizes(self, starts: Mapping[MessageQueue, int]) -> Answers[float]:
        """Mean bytes of the next messages from an offset on, by the sizes in the queues' indexes."""

        async def ask(address: str, queue: MessageQueue) -> float:
            header = QueryConsumeQueueRequestHeader(
                topic=queue.topic, queue_id=queue.queue_id, index=starts[queue], count=SAMPLE_MESSAGES
            )
            reply = await request(self._client.remoting, address, header)
            entries = QueryConsumeQueueResponseBody.from_json(reply.body).queue_data
            if not entries:
                raise RmqdError(f"the index of {queue} has nothing at {starts[queue]}")
            return sum(entry.physic_size for entry in entries) / len(entries)

        return self._at_broker(starts, ask)

    def check_filters(self, group: str, by_topic: Mapping[str, Filter]) -> None:
        """Have brokers look at their topics' SQL conditions: in pulls they let all through that they can't read."""
        data = [
            SubscriptionData(topic, subscription.expression, expression_type=subscription.kind)
            for topic, subscription in by_topic.items()
        ]
        self._run(check_filters(self._client, group, data))

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        await self._client.routes.refresh(topic)
        return self._client.routes.queues(topic)

    def _at_broker(
        self, queues: Iterable[MessageQueue], ask: Callable[[str, MessageQueue], Awaitable[T]]
    ) -> Answers[T]:
        async def at_broker(queue: MessageQueue) -> T:
            routes = self._client.routes
            await routes.lookup(queue.topic)
            address = routes.address(queue.broker_name)
            if address is None:
                raise RouteNotFoundError(queue.topic, f"no address is known for broker {queue.broker_name}")
            try:
                return await ask(address, queue)
            except RmqdError:
                # it may be elsewhere by now
                await routes.refresh(queue.topic)
                if (other := routes.address(queue.broker_name)) in (None, address):
                    raise
                return await ask(str(other), queue)

        return self._each(queues, at_broker)

    def _each(self, queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]) -> Answers[T]:
        answers: Answers[T] = Answers()

        async def one(queue: MessageQueue) -> None:
            try:
                answers.found[queue] = await ask(queue)
            except RmqdError as error:
                answers.failed[queue] = error

        async def every() -> None:
            await asyncio.gather(*map(one, queues))

        self._run(every())
        return answers

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(DEADLINE_SECONDS)
        except TimeoutError:
            future.cancel()
            raise RmqdError(f"RocketMQ did not answer within {DEADLINE_SECONDS:g} s") from None


def patiently(ask: Callable[[], T], seconds: float) -> T:
    """What `ask` gives, asked again while it raises an RmqdError, for so long; then that error."""
    until = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except RouteNotFoundError:
            raise  # an answer: waiting makes no topic
        except RmqdError as error:
            if time.monotonic() + RETRY_SECONDS > until:
                raise
            log.warning("spark.retrying", error=str(error))
        time.sleep(RETRY_SECONDS)


def everyone(answers: Answers[T]) -> dict[MessageQueue, T]:
    """The answers about all queues. Raises the first error where there is one."""
    for error in answers.failed.values():
        raise error
    return answers.found


def replicas_of(routes: RouteTable, queue: MessageQueue) -> tuple[Replica, ...]:
    """A queue's broker as known routes have it, the master first."""
    known = routes.brokers().get(queue.broker_name, {})
    return tuple(Replica(broker_id, address) for broker_id, address in sorted(known.items()))


async def _make_client(options: ClientOptions) -> ClientInstance:
    return ClientInstance(options)
