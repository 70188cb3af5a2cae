"""Members of a consumer group that run during a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.consumer.hooks import Hook
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.consumer.stats.stats_snapshot import QueueSnapshot, TopicSnapshot
from rmqd.runtime.clock import Clock
from tests.client.running import running
from tests.consumer.groups import group_options, handler_of


@dataclass(frozen=True, slots=True)
class Member:
    """A running consumer with its client."""

    consumer: PushConsumer
    client: ClientInstance
    task: asyncio.Task[None]

    def topic(self, *, is_retry: bool = False, name: str = "") -> TopicSnapshot:
        """The counters of a topic; of the only one if not named."""
        return next(
            topic
            for topic in self.consumer.snapshot().topics
            if topic.is_retry == is_retry and name in ("", topic.topic)
        )

    def queue(self, number: int = 0, topic: str = "") -> QueueSnapshot | None:
        """A queue of the member; None if the member does not own it."""
        for queue in self.consumer.snapshot().queues:
            if queue.queue == number and not queue.is_retry and topic in ("", queue.topic):
                return queue
        return None

    def owned(self) -> set[tuple[str, int]]:
        """The acquired queues, without retry topics."""
        return {(queue.topic, queue.queue) for queue in self.consumer.snapshot().queues if not queue.is_retry}

    async def stop(self, shutdown_timeout_seconds: float = 5.0) -> None:
        """Stop the consumer in an orderly way."""
        self.consumer.stop(shutdown_timeout_seconds=shutdown_timeout_seconds)
        await self.task

    async def die(self) -> None:
        """Stop without sending anything more, as after kill -9."""
        await self.client.remoting.close()
        self.task.cancel()
        await asyncio.wait((self.task,))


@contextlib.asynccontextmanager
async def member(
    nameserver: str,
    handle: Callable[..., Any],
    *,
    is_async: bool = True,
    remoting: RemotingClient | None = None,
    clock: Clock | None = None,
    heartbeat_seconds: float = 30.0,
    poll_seconds: float = 30.0,
    namespace_v2: str = "",
    instance_name: str = "DEFAULT",
    hooks: Sequence[Hook] = (),
    **options: Any,
) -> AsyncIterator[Member]:
    """A member that consumes during the block and is then stopped, unless it has ended before."""
    client_options = ClientOptions(nameservers=(nameserver,), heartbeat_broker_interval_seconds=heartbeat_seconds)
    client_options = replace(client_options, poll_name_server_interval_seconds=poll_seconds, namespace_v2=namespace_v2)
    client_options = replace(client_options, instance_name=instance_name)
    client = ClientInstance(client_options, remoting=remoting, clock=clock)
    consumer = PushConsumer(group_options(**options), handler_of(handle, is_async=is_async), client, hooks=hooks)
    async with running(client.run()):
        task = asyncio.create_task(consumer.run())
        try:
            yield Member(consumer, client, task)
        except BaseException:
            consumer.stop(shutdown_timeout_seconds=0)
            await asyncio.wait((task,))  # its failure must not replace the one of the test
            raise
        consumer.stop(shutdown_timeout_seconds=0)
        with contextlib.suppress(asyncio.CancelledError):
            await task
