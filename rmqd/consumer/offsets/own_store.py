"""Handler calls in transactions of a custom offset store: a call's effect and progress are committed together.

Calls of one queue run concurrently, but write their progress and commit one after the other. Messages that the store
has recorded as finished are not handed out again. A queue is *in doubt* after a failed commit, or if another member has
taken it. Then `OffsetStore.take` is called again before the next handler call. `take` returns the stored progress, and
makes the store reject late writes of earlier owners.

`CustomOffsetStore` also commits the offsets to the brokers, for tools and operators.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.batch_worker import HandlerCall, Worker, withdraw_cancellations
from rmqd.consumer.handling.handler_failures import (
    CALL_EXPIRED,
    HANDLED_BEFORE_DECISION,
    acknowledged_indexes,
    decisions_of,
)
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.services import OffsetWatcher
from rmqd.errors import OffsetStoreError, QueueTakenError, RmqdError
from rmqd.handler_api.batch import ACK, AGAIN_DECISION, Batch, InvalidPayloadError, Outcome
from rmqd.offset_stores import OffsetStore, StoredProgress, StoredQueue, connection_of_call
from rmqd.runtime.clock import Clock
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message


class _NotCommittedError(Exception):
    """The transaction is rolled back. Messages of its batch that are not at fault are handled again."""


class _Taken:
    """The state of one queue in the custom store, from its acquisition until its release."""

    def __init__(self, key: StoredQueue) -> None:
        self.key = key
        self.turn = asyncio.Lock()
        self.owner = ""  # our name as owner in the store; empty while the queue is in doubt
        self.stored: StoredProgress | None = None
        self.is_ours = False  # whether the last take returned the progress that we had stored
        self.moves = self.stored_moves = 0  # moves to another offset so far; moves whose offset is stored
        self.recorded: set[Message] = set()  # messages finished in the store, but perhaps not yet in the cache
        self._known = StoredProgress(0)  # the finished messages, according to the store
        self._ranges: list[tuple[int, int]] = []

    def learn(self, stored: StoredProgress | None) -> None:
        self.is_ours, self.stored = stored == self.stored, stored
        if self.moves == self.stored_moves:
            self._known = stored or StoredProgress(0)
            texts = (one.partition("-") for one in filter(None, self._known.above.split(",")))
            self._ranges = [(int(low), int(high)) for low, _, high in texts]

    def has(self, offset: int) -> bool:
        return offset < self._known.offset or any(low <= offset <= high for low, high in self._ranges)

    def progress(self, process_queue: ProcessQueue, done: Sequence[Message] = ()) -> StoredProgress:
        """Return which messages of the queue are finished, including the messages `done`, for the store.

        Raises _NotCommittedError if the cache was dropped: it is empty, so all messages would count as finished.
        """
        if process_queue.dropped:
            raise _NotCommittedError
        end = process_queue.next_offset
        cached = [one for block in process_queue.blocks for one in block.messages if not one.finished]
        self.recorded.intersection_update(cached)
        gone = self.recorded.union(done)
        left = [one.queue_offset for one in cached if one not in gone]
        waiting = [offset for offset in left if offset < end and not self.has(offset)]
        first = low = waiting[0] if waiting else end
        ranges = []
        for offset in (*waiting, end):
            if offset > low:
                ranges.append((low, offset - 1))
            low = offset + 1
        ranges += [(max(low, end), high) for low, high in self._ranges if high >= end]
        return StoredProgress(first, ",".join(f"{low}-{high}" for low, high in ranges))


class OffsetTransactions:
    """The progress of one group's queues in its custom offset store, and the transactions that write it."""

    def __init__(
        self, store: OffsetStore, client_id: str, key_of: Callable[[MessageQueue], StoredQueue], clock: Clock
    ) -> None:
        self.store = store
        # whether messages behind a retried message of their batch must not count as finished
        self.keeps_batch_order = False
        self._client_id = client_id
        self._key_of = key_of
        self._clock = clock
        self._taken: dict[MessageQueue, _Taken] = {}

    async def take(self, queue: MessageQueue) -> StoredProgress | None:
        """Become the queue's owner in the store. Returns the stored progress or None. Raises OffsetStoreError."""
        taken = self._taken.setdefault(queue, _Taken(self._key_of(queue)))
        async with taken.turn:
            await self._take(taken)
            return taken.stored

    def is_last_writer(self, queue: MessageQueue) -> bool:
        """Return whether the last `take` found the progress that this member had stored."""
        return queue in self._taken and self._taken[queue].is_ours

    def forget(self, queue: MessageQueue) -> None:
        """Forget a released queue. Nothing is sent to the store: the next owner calls `take`."""
        self._taken.pop(queue, None)

    def record_move(self, queue: MessageQueue, offset: int, *, downward: bool) -> None:
        """Called when a queue moves to `offset`. Forgets its progress if `downward`, or if `offset` is finished."""
        if (taken := self._taken.get(queue)) is not None and (downward or taken.has(offset)):
            taken.learn(None)
            taken.moves += 1

    def has_news(self, queue: MessageQueue, process_queue: ProcessQueue) -> bool:
        """Return whether a move is not stored, or a message that was finished without a transaction: by a send-back."""
        if (taken := self._taken.get(queue)) is None or process_queue.dropped:
            return False
        stored = taken.stored or StoredProgress(process_queue.commit_offset())
        return taken.moves != taken.stored_moves or taken.progress(process_queue) != stored

    async def store_progress(self, queue: MessageQueue, process_queue: ProcessQueue | None, offset: int) -> None:
        """Store the cache's progress, or `offset` without a cache. Calls no handler. Raises OffsetStoreError."""
        if (taken := self._taken.get(queue)) is None:
            return
        async with taken.turn:
            if process_queue is not None and process_queue.dropped:
                return  # another offset is stored after a reset; after a release, nothing may be stored
            if not taken.owner:
                await self._take(taken)
            moves = taken.moves  # the queue may move during the write
            progress = StoredProgress(offset) if process_queue is None else taken.progress(process_queue)
            if progress != taken.stored:
                with _failures_named():
                    async with self.store.transaction() as connection:
                        await self._write(taken, connection, progress)
            taken.stored, taken.stored_moves = progress, moves

    async def call_in_transaction(self, call: HandlerCall, worker: Worker, batch: Batch) -> object:
        """Call the handler for a batch in one transaction of the store. Raises the handler's exceptions."""
        whole = worker.batch
        try:
            return await self._in_transaction(call, batch, worker)
        except _NotCommittedError:
            _take_back(batch)
            for index in range(len(batch)):
                batch.decide(index, AGAIN_DECISION)
        except BaseException:
            _take_back(batch)
            raise
        finally:
            worker.batch = whole
        return None

    async def _in_transaction(self, call: HandlerCall, batch: Batch, worker: Worker) -> object:
        process_queue, whole, began = worker.process_queue, worker.batch, self._clock.monotonic()
        assert process_queue is not None
        if (taken := self._taken.get(process_queue.message_queue)) is None:
            raise OffsetStoreError("the queue was released before the transaction began")
        worker.batch = None  # the store's requests do not count as a running handler call
        async with taken.turn:
            if not taken.owner:
                await self._take(taken)
        for index, message in enumerate(batch):
            if taken.has(message.queue_offset):
                batch.decide(index, HANDLED_BEFORE_DECISION)
        if len(batch.decisions()) == len(batch):
            return None
        part, is_ending = batch.undecided(), False
        try:
            async with AsyncExitStack() as transaction:
                with _failures_named():
                    connection = await transaction.enter_async_context(self.store.transaction())
                worker.batch, worker.started = whole, worker.started + self._clock.monotonic() - began
                token = connection_of_call.set(connection)
                try:
                    result = await call(part)
                finally:
                    connection_of_call.reset(token)
                await withdraw_cancellations()  # the handler's own cancellations must not end the commit
                worker.batch = None
                _check(part, worker)
                decisions = decisions_of(part, None)
                dead = {index for index, one in enumerate(decisions) if one.outcome is Outcome.DEAD_LETTER}
                done = acknowledged_indexes(part, decisions, dead, in_order=self.keeps_batch_order)
                messages = [part[index] for index in done]
                await taken.turn.acquire()
                is_ending = True
                progress, moves = taken.progress(process_queue, messages), taken.moves
                await self._write(taken, connection, progress)
            taken.stored, taken.stored_moves = progress, moves
            taken.recorded.update(messages)
        except BaseException as error:
            if is_ending:
                taken.owner = ""
                if not isinstance(error, Exception):  # cancelled: the result of the commit is unknown
                    raise OffsetStoreError("the commit was interrupted; whether it took effect is unknown") from error
            raise
        finally:
            if is_ending:
                taken.turn.release()
        for index in done:
            part.decide(index, ACK)  # if the call expires now, committed messages must not be sent back
        return result

    async def _take(self, taken: _Taken) -> None:
        taken.owner, owner = "", f"{self._client_id}#{secrets.token_hex(8)}"
        with _failures_named():
            taken.learn(await self.store.take(taken.key, owner))
        taken.owner = owner

    async def _write(self, taken: _Taken, connection: object, progress: StoredProgress) -> None:
        if not (taken.owner and await self.store.write(connection, taken.key, taken.owner, progress)):
            taken.owner = ""
            raise QueueTakenError(f"another member has, or may have, acquired {taken.key}")


@contextmanager
def _failures_named() -> Iterator[None]:
    """Convert every exception of the store to OffsetStoreError. The code in this context calls no handler."""
    try:
        yield
    except OffsetStoreError:
        raise
    except Exception as error:
        raise OffsetStoreError(f"the offset store failed: {type(error).__name__}: {error}") from error


def _check(part: Batch, worker: Worker) -> None:
    """Raise an error if the handler returned, but the transaction must not be committed."""
    if worker.expired or worker.replaced:
        raise CALL_EXPIRED
    errors = [one.error for one in part.decisions().values() if one.error is not None]
    # a decision has an error if the batch was handled in several calls and one of them failed
    is_failed = any(not isinstance(error, InvalidPayloadError) for error in errors)
    if is_failed or (worker.process_queue is not None and worker.process_queue.dropped):
        raise _NotCommittedError


def _take_back(batch: Batch) -> None:
    """Withdraw the handler's acknowledgements, because its effect was rolled back."""
    for index, decision in list(batch.decisions().items()):
        if decision == ACK:
            batch.replace_decision(index, None)


class CustomOffsetStore(RemoteBrokerOffsetStore):
    """The offsets of a group in its custom store. If the store has no offset of a queue, the broker's offset counts.

    Brokers receive an offset after the store, so they are never ahead of the store. Resets arrive as in every group.
    """

    def __init__(self, client: ClientInstance, group: str, clock: Clock, store: OffsetStore, replay: str = "") -> None:
        """`replay` names the replay that the group runs; each replay has separate offsets. Empty if there is none."""
        super().__init__(client, group, clock)
        self._key_group = f"{group}@{replay}" if replay else group
        self.transactions = OffsetTransactions(store, client.client_id, self._key_of, clock)
        self._owners: dict[MessageQueue, OffsetWatcher] = {}
        self._at_brokers: dict[MessageQueue, int | None] = {}

    async def open(self) -> None:
        with _failures_named():
            await self.transactions.store.open()

    async def close(self) -> None:
        await super().close()
        await self.transactions.store.close()

    async def read(self, queue: MessageQueue) -> int | None:
        """Take the queue from its owner in the store. Return the store's offset; without one, the broker's offset."""
        self._at_brokers[queue] = at_broker = await super().read(queue)
        stored = await self.transactions.take(queue)
        return at_broker if stored is None else stored.offset

    def begin_ownership(
        self, queue: MessageQueue, offset: int | None, watcher: OffsetWatcher | None = None, *, in_peace: bool = True
    ) -> None:
        """Begin an ownership. Later commits to the broker are compared with the broker's offset, not the store's."""
        super().begin_ownership(queue, self._at_brokers.pop(queue, offset), watcher, in_peace=in_peace)
        if watcher is not None:
            self._owners[queue] = watcher

    def forget(self, queue: MessageQueue) -> None:
        super().forget(queue)
        self._owners.pop(queue, None)
        self.transactions.forget(queue)

    def may_have_committed(self, queue: MessageQueue, stored: int) -> bool:
        return self.transactions.is_last_writer(queue)

    async def commit_with_pull(
        self, queue: MessageQueue, offset: int, on: RemotingConnection, may_commit: Callable[[], bool]
    ) -> None:
        """Return None, so that pulls carry no commit: their offset could be ahead of the store."""

    async def commit(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        """Store the offset at which the queue starts or continues. Raises RmqdError."""
        self.transactions.record_move(queue, offset, downward=downward)
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

    def needs_commit(self, queue: MessageQueue, offset: int) -> bool:
        caches = self._owners[queue].process_queues if queue in self._owners else ()
        has_news = any(self.transactions.has_news(queue, cache) for cache in caches)
        return has_news or super().needs_commit(queue, offset)

    async def _try_commit(self, queue: MessageQueue, offset: int, epoch: int) -> RmqdError | None:
        try:
            await self._store(queue, offset)
        except OffsetStoreError as error:
            return error
        return await super()._try_commit(queue, offset, epoch)

    async def _store(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        caches = self._owners[queue].process_queues if queue in self._owners else ()
        fitting = (one for one in caches if not downward or (one.commit_offset() == offset and not one.dropped))
        await self.transactions.store_progress(queue, next(fitting, None), offset)

    def _key_of(self, queue: MessageQueue) -> StoredQueue:
        route = self._client.routes.route(queue.topic)
        brokers = [] if route is None else route.broker_datas
        cluster = next((one.cluster for one in brokers if one.broker_name == queue.broker_name), "")
        cluster = self._client.cluster_id.id or cluster  # prefer the id, because clusters may have equal names
        users = filter(None, (cluster, self._client.options.namespace_v2))  # names already contain the old `namespace`
        return StoredQueue("+".join(users), self._key_group, queue.topic, queue.broker_name, queue.queue_id)
