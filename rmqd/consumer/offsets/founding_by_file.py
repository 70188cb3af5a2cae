"""Start offsets of a broadcasting group. They are in this member's file, which no other process writes."""

from __future__ import annotations

from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.consumer.founding.founding import Founding
from rmqd.consumer.offsets.local_file_store import LocalFileOffsetStore
from rmqd.consumer.options import ConsumerOptions
from rmqd.wire.message_queue import MessageQueue


class FileFounding(Founding):
    """A group without a file is new. Its file gets all start offsets, so a queue missing in it was added later."""

    def __init__(
        self, client: ClientInstance, options: ConsumerOptions, clock: Clock, store: LocalFileOffsetStore
    ) -> None:
        super().__init__(client, options, clock)
        self._store = store

    async def stored(self, queue: MessageQueue) -> int | None:
        """Return the offset in the file."""
        return await self._store.read(queue)

    async def _found(self, first: list[MessageQueue]) -> None:
        if not self._store.is_new:
            return

        async def decide(queue: MessageQueue) -> None:
            self._starts[queue] = await self.policy.of_new_group(queue)

        failed = await self._at_brokers(first, decide)
        self._be_patient(failed)
        self._owe(queue for queue in first if queue not in self._starts)
        await self._store.found({queue: start.offset for queue, start in self._starts.items()})
