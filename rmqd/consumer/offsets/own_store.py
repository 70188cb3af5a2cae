"""The offsets of a group in its custom store, and also on the brokers for tools and operators."""

from __future__ import annotations

from collections.abc import Callable

from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.handling.transactions import OffsetTransactions
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.services import OffsetWatcher
from rmqd.errors import OffsetStoreError, RmqdError
from rmqd.offset_stores import OffsetStore, StoredQueue
from rmqd.runtime.clock import Clock
from rmqd.wire.message_queue import MessageQueue


class OwnOffsetStore(RemoteBrokerOffsetStore):
    """A queue starts at the custom store's offset. If the store has no offset, the queue starts as with brokers alone.

    A broker receives an offset after the store, so the broker is never ahead. Resets arrive as in every group.
    """

    def __init__(self, client: ClientInstance, group: str, clock: Clock, store: OffsetStore) -> None:
        super().__init__(client, group, clock)
        self.transactions = OffsetTransactions(store, client.client_id, self._key_of, clock)
        self._owners: dict[MessageQueue, OffsetWatcher] = {}
        self._at_brokers: dict[MessageQueue, int | None] = {}

    async def open(self) -> None:
        """Open the store. Raises OffsetStoreError."""
        await self.transactions.store.open()

    async def close(self) -> None:
        """End the commits that still run, and close the store."""
        await super().close()
        await self.transactions.store.close()

    async def read(self, queue: MessageQueue) -> int | None:
        """Take the queue from its owner in the store. Returns the offset in the store, or else at the broker."""
        self._at_brokers[queue] = at_broker = await super().read(queue)
        stored = await self.transactions.take(queue)
        return at_broker if stored is None else stored.offset

    def take_over(
        self, queue: MessageQueue, offset: int | None, watcher: OffsetWatcher | None = None, *, in_peace: bool = True
    ) -> None:
        """Begin a new ownership. Its commits to the broker start from the broker's offset."""
        super().take_over(queue, self._at_brokers.pop(queue, offset), watcher, in_peace=in_peace)
        if watcher is not None:
            self._owners[queue] = watcher

    def forget(self, queue: MessageQueue) -> None:
        """Forget a queue that this member has released."""
        super().forget(queue)
        self._owners.pop(queue, None)
        self.transactions.forget(queue)

    def wrote(self, queue: MessageQueue, stored: int) -> bool:
        """Return whether no other member has written since this ownership did."""
        return self.transactions.is_as_left(queue)

    async def carry(
        self, queue: MessageQueue, offset: int, on: RemotingConnection, may_commit: Callable[[], bool]
    ) -> None:
        """Return None: the offset that a pull would carry may be ahead of the store."""

    async def commit(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        """Store the offset at which the queue starts or continues. Raises RmqdError."""
        self.transactions.moved(queue, offset, downward=downward)
        try:
            await self._store(queue, offset, downward=downward)
        finally:
            await super().commit(queue, offset, downward=downward)

    async def commit_upward(
        self, queue: MessageQueue, offset: int, may_commit: Callable[[], bool] = lambda: True
    ) -> bool:
        """Store the progress of a queue that is being released. Raises RmqdError."""
        if may_commit():
            await self._store(queue, offset)
        return await super().commit_upward(queue, offset, may_commit)

    async def _try_commit(self, queue: MessageQueue, offset: int, epoch: int) -> RmqdError | None:
        try:
            await self._store(queue, offset)
        except OffsetStoreError as error:
            return error
        return await super()._try_commit(queue, offset, epoch)

    async def _store(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        caches = self._owners[queue].process_queues if queue in self._owners else ()
        cache = next((one for one in caches if not downward or one.commit_offset() == offset), None)
        await self.transactions.write(queue, cache, offset)

    def _key_of(self, queue: MessageQueue) -> StoredQueue:
        route = self._client.routes.route(queue.topic)
        brokers = [] if route is None else route.broker_datas
        cluster = next((one.cluster for one in brokers if one.broker_name == queue.broker_name), "")
        cluster = self._client.cluster_id.id or cluster  # many clusters share a name
        return StoredQueue(cluster, self._group, queue.topic, queue.broker_name, queue.queue_id)
