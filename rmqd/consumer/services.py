"""The parts of a group that differ by its consume mode and message model, as the rest of the group sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.handler import Batch, Lease
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

    calls_left: bool
    """After the end of `run`: whether calls of the handler may still run."""

    async def run(self) -> None:
        """Work until cancelled. Raises what the group cannot go on after."""

    def submit(self, process_queue: ProcessQueue) -> None:
        """A queue has messages to hand out."""

    def pause(self) -> None:
        """Hand out nothing more; handlers finish what they have."""

    def resume(self) -> None:
        """Go on handing out."""

    def halt(self, process_queue: ProcessQueue) -> None:
        """Begin no further batch of this queue in the turns that are under way."""

    def calls(self) -> list[RunningCall]:
        """What handlers do now; each call takes one slot of the group's concurrency."""

    async def call_apart(self, batch: Batch, ended: Callable[[], None]) -> None:
        """Call the handler outside of the slots, for an operator. Raises what it raises; settles nothing.

        `ended` is called when the call has ended, which may be long after this was cancelled.
        """


class WaysBack(Protocol):
    """What may become of a message that was not acknowledged. Each way says whether the message is taken care of."""

    limit: str
    """Why a message is given up after its last attempt."""

    def is_last_attempt(self, message: Message) -> bool:
        """Whether the group gives the message up if this attempt fails."""

    def delay_level(self, message: Message, asked: int) -> int:
        """The level that a retry is delayed by where the handler or the group `asked` for one; 0 asks for none."""

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Have the message delivered again."""

    async def dead_letter(self, message: Message, reason: str, error: BaseException | None) -> bool:
        """Give the message up."""


class OffsetWatcher(Protocol):
    """Who has a queue, and is to hear what others do to its stored offset."""

    def set_back(self, offset: int) -> None:
        """An operator set it back, and no pull will tell."""

    def overlapped(self, messages: int) -> None:
        """So many messages were finished here and by another member."""


class OffsetStore(Protocol):
    """Where the group's offsets are kept. An offset is the first one that is not consumed."""

    committed: dict[MessageQueue, int]
    committed_at: dict[MessageQueue, float]
    """Unix seconds of the last commit that was taken."""
    failures: int
    """Commits that failed; each is tried again."""

    async def open(self) -> None:
        """Make ready, before the first queue is taken. Raises RmqdError where the store cannot be used."""

    async def close(self) -> None:
        """Let go of what `open` took; after the last commit."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset; None for a group that is new to the queue. Raises RmqdError."""

    def take_over(
        self, queue: MessageQueue, offset: int | None, watcher: OffsetWatcher | None = None, *, in_peace: bool = True
    ) -> None:
        """A new ownership begins at the stored offset; what an earlier one knew is forgotten.

        `watcher` hears for a while of what others do to it; not `in_peace`, a former owner may still commit.
        """

    def forget(self, queue: MessageQueue) -> None:
        """The queue is not ours any more."""

    async def commit(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        """Store an offset. Raises RmqdError.

        An offset that is not above the committed one is left out, unless an operator's reset goes `downward`.
        """

    async def commit_upward(
        self, queue: MessageQueue, offset: int, may_commit: Callable[[], bool] = lambda: True
    ) -> bool:
        """Commit for a queue that is being given up: the next owner may be further already. Raises RmqdError.

        `may_commit` is asked when the request would be sent; False if it said no.
        """

    async def settled(self, queue: MessageQueue, offset: int, until: float) -> bool:
        """Wait, until then (loop time), for commits that could still replace `offset`; whether to look at it again."""

    def wrote(self, queue: MessageQueue, stored: int) -> bool:
        """Whether a stored offset is of this ownership."""

    def may_be_lost(self, queue: MessageQueue) -> bool:
        """Whether less than what was committed may be stored, without anybody having set it back."""

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> bool:
        """Commit many offsets; says whether all were taken. A failure is logged, the next round tries again."""


class Leases(Protocol):
    """Where an orderly group learns whether a queue is its own."""

    def lease(self, queue: MessageQueue) -> Lease | None:
        """The holding of the queue's lock under which a batch may be handed out now."""


class Ownership(Protocol):
    """Which queues this member may consume, beyond what the rebalance says."""

    timeouts: int
    """How often the wait for a queue's former owner was given up."""

    async def members_are(self, address: str, client_ids: Collection[str]) -> None:
        """The group's members as one broker lists them now."""

    async def break_locks(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """See to what members that are gone have left behind."""

    async def acquire(self, queue: MessageQueue, lost: Callable[[], None], notice_seconds: float = 0.0) -> bool:
        """Return when the queue may be consumed; `lost` is called at once when that ends before `release`.

        A former owner may take `notice_seconds` to see that it is waited for. False if it may still have the queue.
        """

    async def release(self, queue: MessageQueue) -> None:
        """Give a queue up; what was to be committed has been."""

    def linger(self, queue: MessageQueue) -> float:
        """Handlers did not end in the time for giving the queue up; how many seconds more it can safely be kept."""

    async def close(self, *, calls_left: bool) -> None:
        """Give up what was not released; at the group's end, with whether calls of the handler may still run."""

    def holds(self, queue: MessageQueue) -> bool:
        """Whether an acquired queue may be consumed now; only orderly groups can lose that for a while."""

    async def run(self) -> None:
        """Keep what is owned, until cancelled."""
