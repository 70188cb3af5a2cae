"""Interfaces: a consumer group as the daemon uses it, and the parts that depend on consume mode and message model."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.circuit import Circuit
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.health.causes import Problem
from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot, QueueSnapshot
from rmqd.handler_api.batch import NO_LOCK_LEASE, Batch, Lease
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A running handler call: its batch, the batch's queue, and when the call started (monotonic seconds)."""

    process_queue: ProcessQueue
    batch: Batch
    started: float


class ConsumeMessageService(Protocol):
    """Passes messages to the handler and settles them."""

    circuit: Circuit | None
    """None for a group without a circuit breaker."""
    calls_left: bool
    """Whether handler calls may still be running after `run` has ended."""

    @property
    def concurrency(self) -> int:
        """The current limit of concurrent handler calls."""

    def change(self, options: ConsumerOptions) -> None:
        """Apply a changed concurrency."""

    async def run(self) -> None:
        """Call the handler for submitted queues until cancelled. Raises the error that ends the group."""

    def submit(self, process_queue: ProcessQueue) -> None:
        """Let the next free worker process this queue, which has messages for the handler."""

    def pause(self) -> None:
        """Start no more handler calls. Running calls finish."""

    def resume(self) -> None:
        """Start handler calls again after `pause`."""

    def halt(self, process_queue: ProcessQueue) -> None:
        """Let workers that are processing this queue leave it after their current batch."""

    def calls(self) -> list[RunningCall]:
        """Return the running calls; each takes one slot of the group's concurrency."""

    @property
    def problem(self) -> Problem | None:
        """Why the whole group starts no handler calls; None if it starts calls, or the reason is unknown."""

    @property
    def keeps_calls_open(self) -> bool:
        """Whether the handler may keep calls running to collect more messages: nothing waits for a call to end."""

    def explain(self, process_queue: ProcessQueue) -> Problem | None:
        """Return why messages of this queue are not handled or not sent back; None if no reason is known."""

    async def call_in_background(self, batch: Batch, ended: Callable[[], None]) -> None:
        """Call the handler for an operator, beyond the concurrency limit. Raises its exceptions. Settles nothing.

        `ended` is called when the handler call ends, which may be long after a cancellation of this method.
        """


class RetryPolicy(Protocol):
    """How an unacknowledged message leaves the queue. `retry` and `dead_letter` return whether they succeeded."""

    limit: str
    """The reason that a dead letter gets after its last attempt has failed."""

    def is_last_attempt(self, message: Message, not_counted: int = 0) -> bool:
        """Return whether the message is dead-lettered if it fails now. `not_counted` of its attempts do not count."""

    def delay_level(self, message: Message, asked: int) -> int:
        """Return the delay level of a retry. `asked` is the level that the handler or group requested; 0 for none."""

    def delay_seconds(self, message: Message, level: int) -> float:
        """Return the default delay of a delay level; a broker's messageDelayLevel may differ."""

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Let the message be redelivered after the delay of this level."""

    async def dead_letter(self, message: Message, reason: str, error: BaseException | None) -> bool:
        """Dead-letter the message, or drop it if the group has no dead letters."""


class OffsetWatcher(Protocol):
    """The owner of a queue. The offset store notifies the owner when other clients change the stored offset."""

    @property
    def process_queues(self) -> Sequence[ProcessQueue]:
        """The queue's caches; empty until the queue is pulled."""

    def move_to(self, offset: int) -> object:
        """Called when an operator reset the stored offset to `offset`, and no pull response will report the reset."""

    def count_handled_twice(self, messages: int) -> None:
        """Called when this number of messages was finished both here and by another member."""


class CarriedCommit(NamedTuple):
    """An offset commit inside a pull request. The caller must call `ended` with the future of the pull's response."""

    offset: int
    ended: Callable[[asyncio.Future[RemotingCommand]], None]


class GroupOffsetStore(ABC):
    """Stores the group's offsets. A queue's offset is the offset of its first unconsumed message.

    The implementations in this class suit a store that no other member writes to.
    """

    def __init__(self) -> None:
        self.committed: dict[MessageQueue, int] = {}
        self.committed_at: dict[MessageQueue, float] = {}  # Unix seconds of the last successful commit
        self.failures = 0  # failed commits; each is retried
        self.problem: Problem | None = None  # why offsets are not stored; None if they are
        # Pulls may carry commits until this time. After it, the next round of commits is overdue. In monotonic seconds,
        # plus the time that the machine was suspended.
        self.carries_until = float("-inf")

    async def open(self) -> None:  # noqa: B027
        """Prepare the store before the first queue is acquired. Raises RmqdError if the store is unusable."""

    @abstractmethod
    async def close(self) -> None:
        """Release the resources that `open` acquired. Called after the last commit."""

    @abstractmethod
    async def read(self, queue: MessageQueue) -> int | None:
        """Return the stored offset; None if the queue has none for this group. Raises RmqdError."""

    def begin_ownership(  # noqa: B027
        self, queue: MessageQueue, offset: int | None, watcher: OffsetWatcher | None = None, *, in_peace: bool = True
    ) -> None:
        """Called when this member acquires a queue with the stored offset `offset`. Forgets an earlier ownership.

        For a while `watcher` is notified if other clients change the stored offset. `in_peace` is True if the previous
        owner has released the queue. Otherwise the previous owner may still commit.
        """

    def forget(self, queue: MessageQueue) -> None:  # noqa: B027
        """Forget a queue that this member has released."""

    @abstractmethod
    async def commit(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        """Commit an offset, and return when it is stored. Raises RmqdError.

        An offset at or below the committed offset is not sent, unless `downward`: a reset or a correction lowers it.
        """

    def is_check_due(self) -> bool:
        """Return whether a round of commits should check the stored offsets of idle queues now."""
        return True

    async def commit_upward(
        self, queue: MessageQueue, offset: int, may_commit: Callable[[], bool] = lambda: True
    ) -> bool:
        """Commit the offset of a queue that is being released, unless a higher offset is stored. Raises RmqdError.

        The next owner may already have started and committed a higher offset. `may_commit` is called immediately before
        the request would be sent; if it returns False, nothing is sent. Returns False if `may_commit` returned False,
        or if the queue was reset or released meanwhile; otherwise True.
        """
        await self.commit(queue, offset)
        return True

    async def commit_with_pull(
        self, queue: MessageQueue, offset: int, on: RemotingConnection, may_commit: Callable[[], bool]
    ) -> CarriedCommit | None:
        """Prepare a commit inside a pull. The caller must then send this pull at once, on the connection `on`.

        Returns None if this pull must not carry a commit, or if `may_commit`, which is called last, returns False.
        """
        return None

    def recheck_stored_offsets(self) -> None:  # noqa: B027
        """Re-read the stored offset before each queue's next commit, because another member may have committed."""

    async def wait_for_commits(self, queue: MessageQueue, offset: int, until: float) -> bool:
        """Wait for unanswered commits that could still overwrite the stored `offset`; at most until `until`, monotonic.

        Returns whether such a commit has ended. If so, the caller must read the stored offset again.
        """
        return False

    def may_have_committed(self, queue: MessageQueue, stored: int) -> bool:
        """Return whether the offset `stored` may come from a commit of this ownership."""
        return True

    def may_be_lost(self, queue: MessageQueue) -> bool:
        """Return whether the store may have lost the queue's last commits. A lower offset is then not a reset."""
        return False

    def needs_commit(self, queue: MessageQueue, offset: int) -> bool:
        """Return whether a round of commits must send this offset, or check the stored offset."""
        return self.committed.get(queue) != offset

    @abstractmethod
    async def persist(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Commit many offsets. Return whether all succeeded; the next round retries the failed ones."""

    async def check_stored(self, queues: Collection[MessageQueue]) -> None:
        """Commit the offsets of these queues again if the store has lost them. The next round retries a failure."""
        await self.persist({queue: self.committed[queue] for queue in queues})


class Ownership:
    """Decides which assigned queues this member may consume now.

    The rebalance assigns queues. Ownership delays the start of a queue until the previous owner has finished and
    committed. docs/proof/ownership.md describes the subclasses and the brokers' part.

    This class is the ownership of groups in which no other member waits for a queue, such as broadcasting groups: every
    member owns all queues at once, without locks or waits.
    """

    timeouts = 0
    """How many waits for a queue's previous owner ended in a timeout."""

    async def on_member_list(self, address: str, client_ids: Collection[str]) -> None:
        """Called with the group's client ids in the list of the broker at `address`."""

    def on_members_changed(self) -> None:
        """Called when a broker reports that members joined or left."""

    async def break_locks(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of members that no longer exist, if this kind of ownership uses locks."""

    async def acquire(
        self, queue: MessageQueue, on_lost: Callable[[], None], max_notice_delay_seconds: float = 0.0
    ) -> bool:
        """Wait until the queue may be consumed. `on_lost` is called at once if ownership ends before `release`.

        A previous owner may need `max_notice_delay_seconds` to notice that another member waits. Returns False after
        a timeout; a previous owner may then still hold the queue.
        """
        return True

    async def release(self, queue: MessageQueue) -> None:
        """Release a queue to its next owner, which reads the stored offset. So the caller must commit first."""

    def start_grace_period(self, queue: MessageQueue) -> float:
        """Return for how many seconds after the drain time a queue may still be held while its handlers run."""
        return 0.0

    async def close(self, *, calls_left: bool) -> None:
        """Release all queues that are still held when the group ends.

        `calls_left` is True if abandoned handler calls may still be running.
        """

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether an acquired queue may be consumed now: False while an orderly group lacks the queue's lock."""
        return True

    def lease(self, queue: MessageQueue) -> Lease | None:
        """Return the lease under which an orderly group may handle a batch now; None while it lacks the queue's lock.

        A broadcasting group has no locks, so its leases never end.
        """
        return NO_LOCK_LEASE

    async def run(self) -> None:
        """Maintain the ownership of the acquired queues until cancelled."""


class Consumer(Protocol):
    """One consumer group, from its first rebalance to its last commit. A restarted group gets a new consumer."""

    async def run(self) -> None:
        """Consume until `stop` is called and the handlers have finished their batches.

        Raises the error that ends the group; the daemon then starts a new consumer. Cancelling ends the group at once
        without a commit, so messages that are not committed are delivered again.
        """

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """Request a graceful end: no new pulls, handlers get the group's shutdown timeout to finish, then a commit."""

    def force_stop(self) -> None:
        """Stop without a drain: abandon running handler calls, and commit the finished messages."""

    async def change(self, options: ConsumerOptions) -> None:
        """Apply changed options without leaving the group. Return when they are in force. Raises RmqdError.

        Only options that are read while the group runs can change: filters of the same topics, thresholds, sizes and
        intervals of pulls, the rate limit, the concurrency. An option that configured a part when it was built, such as
        the batch size, keeps its value.
        """

    def pause(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Stop pulling and calling the handler within this scope, but keep the queues. May be called before `run`."""

    def resume(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Resume every queue that was paused within this scope."""

    def snapshot(self, *, with_queues: bool = True) -> GroupSnapshot:
        """Return the group's state and figures, also before and after `run`. Never raises. Queues are expensive."""

    def queue_snapshots(self) -> Iterator[QueueSnapshot]:
        """Yield the queues of the snapshot one by one. The caller may let the event loop run between them."""
