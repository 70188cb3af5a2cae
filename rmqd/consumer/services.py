"""The parts of a group that differ by its consume mode and message model, as the rest of the group sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.circuit import Circuit
from rmqd.consumer.options import ConsumerOptions
from rmqd.diagnosis.causes import Problem
from rmqd.handler_api import Batch, Lease
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A batch that a handler has now, since `started` (monotonic seconds)."""

    process_queue: ProcessQueue
    batch: Batch
    started: float


class ConsumeMessageService(Protocol):
    """Hands messages to the handler, and sees to what becomes of them."""

    circuit: Circuit | None
    """None for a group without a circuit breaker."""
    calls_left: bool
    """After the end of `run`: whether calls of the handler may still run."""

    @property
    def concurrency(self) -> int:
        """How many calls may run at once now."""

    def change(self, options: ConsumerOptions) -> None:
        """Take over another concurrency."""

    async def run(self) -> None:
        """Work until cancelled. Raises what the group cannot go on after."""

    def submit(self, process_queue: ProcessQueue) -> None:
        """Note that a queue has messages to hand out: it joins the line that workers serve."""

    def pause(self) -> None:
        """Hand out nothing more; handlers finish what they have."""

    def resume(self) -> None:
        """Go on handing out."""

    def halt(self, process_queue: ProcessQueue) -> None:
        """Begin no further batch of this queue in the turns that are under way."""

    def calls(self) -> list[RunningCall]:
        """What handlers do now; each call takes one slot of the group's concurrency."""

    @property
    def problem(self) -> Problem | None:
        """What keeps the whole group from handing anything out, if that is known."""

    @property
    def keeps_calls_open(self) -> bool:
        """Whether a handler takes its time as it gathers messages, and nothing is held up by that."""

    def explain(self, process_queue: ProcessQueue) -> Problem | None:
        """What keeps messages of this queue from being handed out, or sent back, if that is known."""

    async def call_apart(self, batch: Batch, ended: Callable[[], None]) -> None:
        """Call the handler outside of the slots, for an operator. Raises what it raises; settles nothing.

        `ended` is called when the call has ended, which may be long after this was cancelled.
        """


class WaysBack(Protocol):
    """What may become of a message that was not acknowledged. Each way says whether the message is taken care of."""

    limit: str
    """Why a message is given up after its last attempt."""

    def is_last_attempt(self, message: Message, not_counted: int = 0) -> bool:
        """Whether the group gives the message up if this attempt fails; so many of the former ones may not count."""

    def delay_level(self, message: Message, asked: int) -> int:
        """The level that a retry is delayed by where the handler or the group `asked` for one; 0 asks for none."""

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Have the message delivered again."""

    async def dead_letter(self, message: Message, reason: str, error: BaseException | None) -> bool:
        """Give the message up: to the group's dead letters, or dropped where it has none."""


class OffsetWatcher(Protocol):
    """The owner of a queue, as the offset store tells it what others do to the queue's stored offset."""

    @property
    def process_queues(self) -> Sequence[ProcessQueue]:
        """The queue's cache; none before it is pulled."""

    def set_back(self, offset: int) -> None:
        """Hear that an operator has set the stored offset to `offset`, and that no pull will tell of it."""

    def overlapped(self, messages: int) -> None:
        """Hear that so many messages were finished both here and by another member."""


class CarriedCommit(NamedTuple):
    """A commit that a pull carries. `ended` is called with the future of the pull's answer."""

    offset: int
    ended: Callable[[asyncio.Future[RemotingCommand]], None]


class OffsetStore(Protocol):
    """Where the group's offsets are kept. An offset is the first one that is not consumed."""

    committed: dict[MessageQueue, int]
    committed_at: dict[MessageQueue, float]
    """Unix seconds of the last commit that was taken."""
    failures: int
    """Commits that failed; each is tried again."""
    carries_until: float
    """When the next round of commits is overdue: monotonic, with the seconds in which the machine was suspended."""

    async def open(self) -> None:
        """Make ready, before the first queue is taken. Raises RmqdError where the store cannot be used."""

    async def close(self) -> None:
        """Let go of what `open` took; after the last commit."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset; None for a group that is new to the queue. Raises RmqdError."""

    def take_over(
        self, queue: MessageQueue, offset: int | None, watcher: OffsetWatcher | None = None, *, in_peace: bool = True
    ) -> None:
        """Begin a new ownership at the stored offset; forget what an earlier ownership knew.

        For a while `watcher` is told what others do to the stored offset. `in_peace` says that the former owner has let
        go of the queue; otherwise it may still commit.
        """

    def forget(self, queue: MessageQueue) -> None:
        """Forget a queue that this member has given up."""

    async def commit(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        """Store an offset. Raises RmqdError.

        An offset that is not above the committed one is left out, unless an operator's reset goes `downward`.
        """

    async def commit_upward(
        self, queue: MessageQueue, offset: int, may_commit: Callable[[], bool] = lambda: True
    ) -> bool:
        """Commit for a queue that is being given up, unless a higher offset is stored. Raises RmqdError.

        The next owner may have begun, and be further already. `may_commit` is asked right before the request would be
        sent. Returns False if it said no.
        """

    async def carry(
        self, queue: MessageQueue, offset: int, on: RemotingConnection, may_commit: Callable[[], bool]
    ) -> CarriedCommit | None:
        """Have a pull commit an offset, which the caller sends at once by this connection to the queue's master.

        `may_commit` is asked right before. Returns None if this pull must not commit.
        """

    def doubt(self) -> None:
        """Look at what is stored ahead of the next commit of each queue: others may have committed meanwhile."""

    async def settled(self, queue: MessageQueue, offset: int, until: float) -> bool:
        """Wait, until then (monotonic), for the end of commits that could still replace `offset`.

        Returns whether some have ended, so that they may have replaced it, and it has to be looked at again.
        """

    def wrote(self, queue: MessageQueue, stored: int) -> bool:
        """Whether a stored offset is one that this ownership has committed, or may have committed."""

    def may_be_lost(self, queue: MessageQueue) -> bool:
        """Whether less than what was committed may be stored, without anybody having set it back."""

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Commit many offsets. Returns whether all were taken; the next round tries again what was not."""


class Leases(Protocol):
    """Where an orderly group learns whether a queue is its own."""

    def lease(self, queue: MessageQueue) -> Lease | None:
        """The holding of the queue's lock under which a batch may be handed out now."""


class Ownership(Protocol):
    """Which of its queues this member may consume now.

    The rebalance says which queues a member is to have. Ownership says whether it may begin: not before the former
    owner has finished and committed. docs/proof/ownership.md has both kinds, and what brokers do.
    """

    timeouts: int
    """How often the wait for a queue's former owner was given up."""

    async def members_are(self, address: str, client_ids: Collection[str]) -> None:
        """Hear which members one broker lists now."""

    def noticed(self) -> None:
        """Hear a broker's notice that members came or went."""

    async def break_locks(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Free the locks that members which are gone have left behind, where this kind of ownership does so."""

    async def acquire(self, queue: MessageQueue, lost: Callable[[], None], notice_seconds: float = 0.0) -> bool:
        """Return when the queue may be consumed; `lost` is called at once when that ends before `release`.

        A former owner may take `notice_seconds` to see that somebody waits for it. Returns False if the wait was given
        up, so that a former owner may still have the queue.
        """

    async def release(self, queue: MessageQueue) -> None:
        """Let the next owner have a queue. The caller has committed before: the next owner reads the stored offset."""

    def linger(self, queue: MessageQueue) -> float:
        """For how many more seconds a queue can be kept whose handlers did not end in the time for giving it up."""

    async def close(self, *, calls_left: bool) -> None:
        """Release everything that is still held when the group ends.

        `calls_left` says that calls of the handler may still be running, which nobody waits for any more.
        """

    def holds(self, queue: MessageQueue) -> bool:
        """Whether an acquired queue may be consumed now; only orderly groups can lose that for a while."""

    async def run(self) -> None:
        """Keep what is owned, until cancelled."""
