"""The behaviour of the official Java client as other members see it (`DefaultMQPushConsumerImpl` and related classes).

It releases a queue at once: it does not wait for handlers, and discards their results. It commits offsets one-way,
every 5 s and with each pull. It acquires a queue without asking the previous owner. The simulation omits rare behaviour
and behaviour that other members do not see: filters, hooks, expired messages, the second way of sending a message back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.allocate import averagely
from rmqd.consumer.handling.send_back import reconsume_limit
from rmqd.errors import RmqdError
from rmqd.wire.bodies.group_bodies import ResetOffsetBody
from rmqd.wire.bodies.heartbeat_data import SUBSCRIPTION_ALL, ConsumeFromWhere, ConsumerData, tag_subscription
from rmqd.wire.topics import retry_topic
from tests.simulation.loop import LoopClock
from tests.simulation.members.java_brokers import JavaBrokers
from tests.simulation.members.java_queue import JavaQueue

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.client.remoting.peer_requests import Reply
    from rmqd.consumer.consumer_options import ConsumerOptions
    from rmqd.wire.command import RemotingCommand
    from rmqd.wire.message_queue import MessageQueue
    from tests.simulation.members.handling import Handling

BALANCED_SECONDS: Final = 20.0
UNBALANCED_SECONDS: Final = 1.0
LOCK_AGAIN_SECONDS: Final = 0.5
IDLE_SECONDS: Final = 120.0
PERSIST_SECONDS: Final = 5.0
FIRST_PERSIST_SECONDS: Final = 10.0
RENEW_SECONDS: Final = 20.0
RESET_SECONDS: Final = 10.0

OnOwned = Callable[["MessageQueue", bool], object]
"""Called with a queue and True before it is acquired, and with False when it is released."""
OnForced = Callable[["MessageQueue"], object]
"""Called with an orderly queue before it is unlocked while a handler has messages of it."""


class JavaConsumer:
    """One group in one Java process."""

    def __init__(
        self,
        options: ConsumerOptions,
        handling: Handling,
        client: ClientInstance,
        on_owned: OnOwned,
        on_forced: OnForced,
    ) -> None:
        self.group = options.group
        self.options = options
        self.handling = handling
        self.brokers = JavaBrokers(client, options.group)
        self.is_orderly = options.consume_mode == "orderly"
        self.is_suspended = False
        self.most_attempts = reconsume_limit(options)
        self.offsets: dict[MessageQueue, int] = {}
        self.on_forced = on_forced
        self.slots = asyncio.Semaphore(options.concurrency)
        self.versions = dict.fromkeys((*options.subscriptions, retry_topic(options.group)), 0)
        """The subscription versions, by topic: when the topic's queues last changed."""
        self._client = client
        self._on_owned = on_owned
        self._queues: dict[MessageQueue, JavaQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()

    def consumer_data(self) -> ConsumerData:
        """The group's part of a heartbeat."""
        all_of = [tag_subscription(topic, SUBSCRIPTION_ALL, version) for topic, version in self.versions.items()]
        return ConsumerData(self.group, tuple(all_of), consume_from_where=ConsumeFromWhere.FIRST_OFFSET)

    def on_consumer_ids_changed(self) -> None:
        """Rebalance at once."""
        self._wake.set()

    async def on_request(self, command: RemotingCommand) -> Reply | None:
        """Obey a pushed reset; refuse other requests."""
        if command.code != RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            return (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "", {}, b"")
        self.begin(self._reset(ResetOffsetBody.from_json(command.body).offset_table))
        return None

    def pause(self) -> None:
        """Stop pulling. Cached messages are still handled."""
        self.is_suspended = True

    def resume(self) -> None:
        """Resume pulling."""
        self.is_suspended = False
        self._wake.set()

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """Stop without waiting for handlers (awaitTerminationMillisWhenShutdown is 0)."""
        self._stopping.set()

    def force_stop(self) -> None:
        """Stop."""
        self._stopping.set()

    async def change(self, options: ConsumerOptions) -> None:
        """Apply changed options."""
        self.options = options

    async def run(self) -> None:
        """Run until `stop`."""
        for topic in self.versions:
            self._changed(topic)
        self._client.register(self)
        for topic in self.versions:
            with contextlib.suppress(RmqdError):
                await self._client.routes.lookup(topic)
            await self._client.heartbeat.send_heartbeats()  # the first heartbeat creates the retry topic
        self.begin(self._rebalance_again())
        self.begin(self._persist_again())
        if self.is_orderly:
            self.begin(self._renew_again())
        await self._stopping.wait()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if self.is_orderly:
            await self.brokers.unlock(self._queues)
        for queue, one in self._queues.items():
            await self._persist(queue)
            self.drop(one)
        await self._client.unregister(self.group)
        if self._error is not None:
            raise self._error

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task; its error ends the consumer."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error
            self._stopping.set()

    def _changed(self, topic: str) -> None:
        self.versions[topic] = int(LoopClock().wall() * 1000)

    # Assignment of queues

    async def _rebalance_again(self) -> None:
        while True:
            is_balanced = True
            for topic in self.versions:
                try:
                    is_balanced &= await self._rebalance(topic)
                except RmqdError:
                    is_balanced = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BALANCED_SECONDS if is_balanced else UNBALANCED_SECONDS):
                    await self._wake.wait()
            self._wake.clear()

    async def _rebalance(self, topic: str) -> bool:
        queues = sorted(self._client.routes.queues(topic))
        if not queues:
            return True
        members = await self.brokers.members(random.choice(queues))
        share = set(averagely(self.group, self._client.client_id, queues, members))
        has_changed = await self._give_up(topic, share)
        has_changed |= await self._take(share)
        if has_changed:
            self._changed(topic)
            self._client.heartbeat.send_heartbeats_soon()
        return share == {queue for queue in self._queues if queue.topic == topic}

    async def _give_up(self, topic: str, share: set[MessageQueue]) -> bool:
        now = asyncio.get_running_loop().time()
        own = [one for one in self._queues.values() if one.queue.topic == topic]
        gone = [one for one in own if one.queue not in share or now - one.pulled_at > IDLE_SECONDS]
        for one in gone:
            self.drop(one)
        has_changed = False
        for one in gone:
            if await self._remove(one):
                self._queues.pop(one.queue, None)
                has_changed = True
        return has_changed

    def drop(self, one: JavaQueue) -> None:
        """Release a queue; its last commit and its unlock follow later."""
        if not one.is_dropped:
            one.drop()
            self._on_owned(one.queue, False)

    async def _remove(self, one: JavaQueue) -> bool:
        """Commit and unlock a dropped queue. Return False, and keep the lock, if a handler still has messages of it."""
        await self._persist(one.queue)
        if self.is_orderly:
            if not await one.may_unlock():
                return False
            await self._persist(one.queue)
        self.offsets.pop(one.queue, None)
        if self.is_orderly:
            one.locked_at = None
            await self.brokers.unlock([one.queue])
        return True

    async def _take(self, share: set[MessageQueue]) -> bool:
        has_changed = False
        for queue in sorted(share - self._queues.keys()):
            if self.is_orderly and not await self.lock([queue]):
                asyncio.get_running_loop().call_later(LOCK_AGAIN_SECONDS, self._wake.set)
                continue
            self._on_owned(queue, True)
            self.offsets.pop(queue, None)
            try:
                one = JavaQueue(self, queue, await self.stored(queue))
            except RmqdError:
                self._on_owned(queue, False)
                continue
            self._queues[queue] = one
            self.begin(one.pull())
            if self.is_orderly:
                self.begin(one.handle_in_order())
            has_changed = True
        return has_changed

    async def begin_anew(self, queue: MessageQueue, offset: int) -> None:
        """Handle an offset that a broker rejects: commit the offset that it offers, and acquire the queue again."""
        self.offsets[queue] = offset
        await self._persist(queue)
        if (one := self._queues.pop(queue, None)) is not None:
            self.drop(one)
            await self._remove(one)
        self._wake.set()

    async def _reset(self, table: dict[MessageQueue, int]) -> None:
        self.pause()
        for queue in table.keys() & self._queues.keys():
            self.drop(self._queues[queue])
            self._queues[queue].cached.clear()
        await asyncio.sleep(RESET_SECONDS)
        for queue in sorted(table.keys() & self._queues.keys()):
            self.offsets[queue] = table[queue]
            # Java does not drop a queue that was acquired again meanwhile, so both instances continue.
            self.drop(one := self._queues[queue])
            await self._remove(one)
            self._queues.pop(queue, None)
        self.resume()

    # Locks and offsets

    async def _renew_again(self) -> None:
        await asyncio.sleep(1.0)
        while True:
            held = [queue for queue, one in self._queues.items() if not one.is_dropped]
            for queues in self._client.routes.by_endpoint(held).values():
                await self.lock(queues)
            await asyncio.sleep(RENEW_SECONDS)

    async def lock(self, queues: list[MessageQueue]) -> bool:
        """Lock queues of one broker, or renew their locks. Return whether all are locked."""
        locked = await self.brokers.lock(queues)
        for queue in queues:
            if queue in self._queues:
                self._queues[queue].locked_at = asyncio.get_running_loop().time() if queue in locked else None
        return locked.issuperset(queues)

    async def stored(self, queue: MessageQueue) -> int:
        """Return the stored offset of a queue; commits continue from there. Raises RmqdError."""
        offset = await self.brokers.stored(queue)
        if offset is not None:
            self.offsets[queue] = offset
        return offset or 0

    async def _persist_again(self) -> None:
        await asyncio.sleep(FIRST_PERSIST_SECONDS)
        while True:
            for queue in list(self._queues):
                await self._persist(queue)
            await asyncio.sleep(PERSIST_SECONDS)

    async def _persist(self, queue: MessageQueue) -> None:
        if queue in self.offsets:
            await self.brokers.commit(queue, self.offsets[queue])
