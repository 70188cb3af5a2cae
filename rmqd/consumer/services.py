"""Interfaces: of the parts of a group that depend on consume mode and message model, and of a group for the daemon."""

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
from rmqd.handler_api.batch import ENDLESS_LEASE, Batch, Lease
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A batch that the handler is processing since `started` (monotonic seconds)."""

    process_queue: ProcessQueue
    batch: Batch
    started: float


class ConsumeMessageService(Protocol):
    """Passes messages to the handler and settles them."""

    circuit: Circuit | None
    """None for a group without a circuit breaker."""
    calls_left: bool
    """After the end of `run`: whether handler calls may still run."""

    @property
    def concurrency(self) -> int:
        """How many calls may run at once now."""

    def change(self, options: ConsumerOptions) -> None:
        """Apply a changed concurrency."""

    async def run(self) -> None:
        """Work until cancelled. Raises the error that ends the group."""

    def submit(self, process_queue: ProcessQueue) -> None:
        """Add a queue to the queues that wait for a worker, because it has messages for the handler."""

    def pause(self) -> None:
        """Start no more calls; running calls finish."""

    def resume(self) -> None:
        """Start calls again."""

    def halt(self, process_queue: ProcessQueue) -> None:
        """Start no further batch of this queue, even in a worker that is processing the queue."""

    def calls(self) -> list[RunningCall]:
        """Return the running calls; each takes one slot of the group's concurrency."""

    @property
    def problem(self) -> Problem | None:
        """Why the whole group starts no calls, if known."""

    @property
    def keeps_calls_open(self) -> bool:
        """Whether a handler keeps calls open to collect messages, which delays nothing."""

    def explain(self, process_queue: ProcessQueue) -> Problem | None:
        """Return why messages of this queue are not handled or not sent back, if known."""

    async def call_in_background(self, batch: Batch, ended: Callable[[], None]) -> None:
        """Call the handler outside the slots, for an operator. Raises the handler's exception; settles nothing.

        `ended` is called when the call ends, which may be long after a cancellation of this method.
        """


class RetryPolicy(Protocol):
    """How an unacknowledged message leaves the queue. `retry` and `dead_letter` return whether that has succeeded."""

    limit: str
    """Why a message is dead-lettered after its last attempt."""

    def is_last_attempt(self, message: Message, not_counted: int = 0) -> bool:
        """Return whether the message is dead-lettered if this attempt fails. Ignores `not_counted` attempts."""

    def delay_level(self, message: Message, asked: int) -> int:
        """Return the delay level of a retry. `asked` is the level that handler or group requested; 0 for none."""

    def delay_seconds(self, message: Message, level: int) -> float:
        """Return the delay of a level. Brokers may have other delays (messageDelayLevel)."""

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Retry the message later."""

    async def dead_letter(self, message: Message, reason: str, error: BaseException | None) -> bool:
        """Dead-letter the message, or drop it if the group has no dead letters."""


class OffsetWatcher(Protocol):
    """The owner of a queue, which the offset store notifies when other clients change the stored offset."""

    @property
    def process_queues(self) -> Sequence[ProcessQueue]:
        """The queue's cache; empty until the queue is pulled."""

    def move_to(self, offset: int) -> object:
        """Called when an operator reset the stored offset to `offset` and no pull response will report it."""

    def count_handled_twice(self, messages: int) -> None:
        """Called when this number of messages was finished both here and by another member."""


class CarriedCommit(NamedTuple):
    """A commit carried by a pull. `ended` is called with the future of the pull's response."""

    offset: int
    ended: Callable[[asyncio.Future[RemotingCommand]], None]


class GroupOffsetStore(ABC):
    """Stores the group's offsets. An offset is the first unconsumed one.

    The methods that are not abstract have the behaviour of a store that no other member writes.
    """

    def __init__(self) -> None:
        self.committed: dict[MessageQueue, int] = {}
        self.committed_at: dict[MessageQueue, float] = {}  # Unix seconds of the last successful commit
        self.failures = 0  # failed commits; each is retried
        self.problem: Problem | None = None  # why offsets are not stored
        # When the next round of commits is overdue: monotonic seconds, plus the time that the machine was suspended.
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
        """Start a new ownership at the stored offset, and forget the data of an earlier one.

        For a while `watcher` is notified if other clients change the stored offset. `in_peace` is True if the previous
        owner has released the queue. Otherwise the previous owner may still commit.
        """

    def forget(self, queue: MessageQueue) -> None:  # noqa: B027
        """Forget a queue that this member has released."""

    @abstractmethod
    async def commit(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        """Commit an offset, and return when it is stored. Raises RmqdError.

        An offset at or below the committed one is not sent, unless an operator's reset goes `downward`.
        """

    def is_check_due(self) -> bool:
        """Return whether a round should check the offsets of idle queues. Cheap, although there may be thousands."""
        return True

    async def commit_upward(
        self, queue: MessageQueue, offset: int, may_commit: Callable[[], bool] = lambda: True
    ) -> bool:
        """Commit for a queue that is being released, unless a higher offset is stored. Raises RmqdError.

        The next owner may already have started and committed a higher offset. `may_commit` is called immediately before
        the request would be sent; if it returns False, nothing is sent. Returns True if this or a higher offset stays;
        False if `may_commit` returned False, or if the queue was reset or released meanwhile.
        """
        await self.commit(queue, offset)
        return True

    async def commit_with_pull(
        self, queue: MessageQueue, offset: int, on: RemotingConnection, may_commit: Callable[[], bool]
    ) -> CarriedCommit | None:
        """Prepare a commit within a pull, which the caller sends at once on this connection to the queue's master.

        `may_commit` is called immediately before. Returns None if this pull must not commit.
        """
        return None

    def recheck_stored_offsets(self) -> None:  # noqa: B027
        """Re-read the stored offset before each queue's next commit, because another member may have committed."""

    async def wait_for_commits(self, queue: MessageQueue, offset: int, until: float) -> bool:
        """Wait, at most `until` (monotonic), for the end of commits that could still replace `offset`.

        Returns whether such a commit has ended. The caller must then read the stored offset again.
        """
        return False

    def may_have_committed(self, queue: MessageQueue, stored: int) -> bool:
        """Return whether this ownership has committed, or may have committed, a stored offset."""
        return True

    def may_be_lost(self, queue: MessageQueue) -> bool:
        """Return whether the stored offset may be lower than the committed one without a reset."""
        return False

    def needs_commit(self, queue: MessageQueue, offset: int) -> bool:
        """Return whether a round must commit this offset, or check the stored one. Most queues are idle."""
        return self.committed.get(queue) != offset

    @abstractmethod
    async def persist(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Commit many offsets. Return whether all succeeded; the next round retries the others."""

    async def check_stored(self, queues: Collection[MessageQueue]) -> bool:
        """Commit the committed offsets of these queues again if the store has lost them."""
        return await self.persist({queue: self.committed[queue] for queue in queues})


class Ownership:
    """Decides which assigned queues this member may consume now.

    The rebalance assigns queues. Ownership delays the start of a queue until the previous owner has finished and
    committed. docs/proof/ownership.md describes both kinds of ownership and the brokers' part.

    This class is the ownership of groups in which no other member waits for a queue, such as broadcasting groups: every
    member owns all queues at once, without locks or waits.
    """

    timeouts = 0
    """How many waits for a queue's previous owner ended in a timeout."""

    async def on_member_list(self, address: str, client_ids: Collection[str]) -> None:
        """Called with the members that one broker lists now."""

    def on_members_changed(self) -> None:
        """Called when a broker reports that members joined or left."""

    async def break_locks(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of members that no longer exist, if this kind of ownership uses locks."""

    async def acquire(
        self, queue: MessageQueue, on_lost: Callable[[], None], max_notice_delay_seconds: float = 0.0
    ) -> bool:
        """Return when the queue may be consumed. `on_lost` is called at once if ownership ends before `release`.

        A previous owner may need `max_notice_delay_seconds` to notice that another member waits. Returns False after
        a timeout; a previous owner may then still hold the queue.
        """
        return True

    async def release(self, queue: MessageQueue) -> None:
        """Release a queue to its next owner, which reads the stored offset. So the caller must commit first."""

    def start_grace_period(self, queue: MessageQueue) -> float:
        """Return how many more seconds a queue may be held whose handlers overrun the drain time."""
        return 0.0

    async def close(self, *, calls_left: bool) -> None:
        """Release everything that is still held when the group ends.

        `calls_left` is True if handler calls may still run that were abandoned.
        """

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether an acquired queue may be consumed now. Only orderly groups can lose this right for a while."""
        return True

    def lease(self, queue: MessageQueue) -> Lease | None:
        """Return the lease under which an orderly group may handle a batch now; None while it lacks the queue's lock.

        A broadcasting group has no locks, so its leases never end.
        """
        return ENDLESS_LEASE

    async def run(self) -> None:
        """Maintain the ownership of the acquired queues until cancelled."""


class Consumer(Protocol):
    """One consumer group, from its first rebalance to its last commit. Used once: a restart creates a new one."""

    async def run(self) -> None:
        """Consume until `stop` is called and the handlers have finished their batches.

        Raises the error that ends the group; the daemon then starts a new consumer. Cancelling ends the group at once
        without a commit, so messages that are not committed are delivered again.
        """

    def stop(self, *, shutdown_timeout_seconds: float | None = None) -> None:
        """Request a graceful end: no new pulls, handlers get the group's shutdown timeout to finish, then a commit."""

    def force_stop(self) -> None:
        """Cut the drain short: abandon running handlers, commit finished messages, and end."""

    async def change(self, options: ConsumerOptions) -> None:
        """Apply changed options without leaving the group. Return when they are in force. Raises RmqdError.

        Only options that are read while the group runs can change: filters of the same topics, thresholds, sizes and
        intervals of pulls, the rate limit, the concurrency. An option that configured a part when it was built, such as
        the batch size, keeps its value.
        """

    def pause(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Stop pulling and calling the handler, but keep the queues. May be called before `run`."""

    def resume(self, scope: PauseScope = WHOLE_GROUP) -> None:
        """Resume every queue that was paused within this scope."""

    def snapshot(self, *, with_queues: bool = True) -> GroupSnapshot:
        """Return the group's state and figures. Never raises, and may be called before and after `run`. Cheap without
        the queues. There may be thousands of queues.
        """

    def queue_snapshots(self) -> Iterator[QueueSnapshot]:
        """Yield the queues of the snapshot one by one. The caller may let the event loop run between them."""
