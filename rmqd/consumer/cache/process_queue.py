"""What one ownership of a queue holds: the messages between their pull and their commit.

A message goes through these states, in this order:

- pulled: its block, which is one reply of the broker, is in `blocks`. It counts in `cached_count` until it is finished.
- pending: it waits for a worker, in `pending`, or in `paused` while an operator pauses the queue.
- handed out: a handler has it. If it can be neither acknowledged nor sent back, it is postponed, and pending once more.
- finished: acknowledged, sent back, dead-lettered, or skipped because the group does not want it. Where the handler
  commits (`auto_commit: false`), what it acknowledged is uncommitted first, and finished by its commit.
- committed: it is below the offset that the offset store has written. This class says which offset may be written.

The broker keeps one offset per group and queue, and takes all below it as consumed. So the commit offset is the first
offset that is not finished. Messages finish in any order; one that takes long leaves a gap below those that overtook
it, and holds the offset back. If the process dies now, the finished ones above the gap are delivered again; with the
offset above the gap, the unfinished one would be lost. With nothing cached the commit offset is the offset of the next
pull, which is above the last message where the broker's filter passed over some.

Blocks are in queue order and leave `blocks` when their last message is finished. So the first block has the first
unfinished message, and the block's cursor, which moves up only, finds it without looking at a message twice.

An offset can be moved in two ways. A correction keeps the cache and pulls from another offset on (`continue_at`). The
commit offset is never above that offset. If it lies below cached messages, no reply is put until those are finished. An
operator's reset drops the cache, and another ProcessQueue begins at the new offset: what handlers still have of the
dropped one is neither finished nor committed when they return.

The state changes through the methods alone, and everybody may read it. One exception is for speed: a worker whose
batches have one message takes it from `pending` itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message, MessageBlock


class ProcessQueue:
    """The cache of one MessageQueue. Does no I/O and knows no consumer; used from the event loop only."""

    __slots__ = (
        "_idle",
        "_relief",
        "away",
        "blocks",
        "cached_bytes",
        "cached_count",
        "dropped",
        "dropped_because",
        "gathering",
        "handed_as",
        "handed_out_to",
        "in_flight",
        "is_full",
        "is_paused",
        "last_store_timestamp",
        "leaving",
        "message_queue",
        "newest_store_timestamp",
        "next_offset",
        "paused",
        "pending",
        "put_count",
        "retrying",
        "stats",
        "uncommitted",
    )

    def __init__(self, message_queue: MessageQueue, next_offset: int, stats: TopicStats, namespace: str = "") -> None:
        self.message_queue: Final = message_queue
        self.handed_as: Final = message_queue.without(namespace)  # what handlers are told that it is
        self.stats: Final = stats  # of the queue's topic
        self.next_offset = next_offset  # where the next pull starts
        self.blocks: deque[MessageBlock] = deque()  # replies with unfinished messages, in queue order
        self.pending: Final[deque[Message]] = deque()  # not handed out yet
        self.paused: Final[deque[Message]] = deque()  # not to be handed out, because an operator paused the queue
        self.is_paused = False
        self.away = (0.0, "")  # until when (Unix) messages wait for the handler's counterpart, and why
        self.uncommitted: list[Message] = []  # handled, and finished once the handler commits
        self.put_count = 0  # messages that came and were wanted
        self.cached_count = 0  # not finished: waiting or being handled
        self.cached_bytes = 0
        self.in_flight = 0  # turns of workers at this queue; in each of them a handler has at most one batch
        self.is_full = False  # nothing is popped until some of its messages are acknowledged
        self.gathering = False  # its messages wait for more of them, to be handed out as one batch
        self.retrying = 0  # messages that wait for another try of their send-back
        self.leaving = False  # it is being given up: nothing more is handed out, what handlers have may finish
        self.dropped = False  # it is not owned any more: results that still come are thrown away
        self.dropped_because = ""  # the cause under which the duplicates that come of it are counted
        self.handed_out_to = 0  # since `leave`: no message from this offset on was handed out before
        self.last_store_timestamp = 0
        self.newest_store_timestamp = 0  # of all messages that were put or passed over; in milliseconds
        self._relief: asyncio.Future[None] | None = None  # of who is in `wait_relief`
        self._idle: asyncio.Future[None] | None = None  # of who is in `wait_idle`

    def put(self, block: MessageBlock, next_offset: int, held: Sequence[Message] = ()) -> None:
        """Add a reply's messages, and have the next pull start at `next_offset`.

        No handler gets those that are `held`: they are corrupt, and the pull loop sends them to the dead letters. Until
        it has finished them, the commit offset does not pass them.
        """
        self.next_offset = next_offset
        messages = block.messages
        stored_ms = messages[-1].store_timestamp if messages else 0
        if stored_ms > self.newest_store_timestamp:
            self.newest_store_timestamp = stored_ms
        if not block.unfinished:
            messages.clear()
            return
        self.blocks.append(block)
        if held:
            self._add([message for message in messages if not (message.finished or message in held)])
        elif block.unfinished == len(messages):
            self._add(messages)
        else:
            self._add([message for message in messages if not message.finished])
        block.put_before = self.put_count
        self.put_count += block.unfinished
        self.cached_count += block.unfinished
        self.cached_bytes += block.size_bytes
        self.last_store_timestamp = stored_ms

    def continue_at(self, offset: int) -> None:
        """Start the next pull there; what is cached stays."""
        self.next_offset = offset

    def note_passed_over(self, stored_ms: int) -> None:
        """Note that messages stored until then may have been passed over, as the group's filter did not want them."""
        self.newest_store_timestamp = max(self.newest_store_timestamp, stored_ms)

    def take(self, most: int) -> list[Message]:
        """Hand out up to `most` messages, in queue order."""
        pending = self.pending
        if len(pending) <= most:
            messages = list(pending)
            pending.clear()
            return messages
        return [pending.popleft() for _ in range(most)]

    def begin_turn(self) -> None:
        """A worker begins to take batches, and has at most one at a time until `end_turn`."""
        self.in_flight += 1

    def end_turn(self) -> None:
        """The worker's last batch has ended."""
        self.in_flight -= 1
        self._tell_idle()

    @property
    def is_busy(self) -> bool:
        """Whether a handler has a batch; also, in a queue that is left, whether one is still to have some."""
        return self.in_flight > 0

    async def wait_idle(self) -> None:
        """Wait until the queue is not busy; for one waiter at a time."""
        if self.is_busy:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def postpone(self, messages: list[Message]) -> None:
        """Keep messages that were handled and could not be sent back; they wait for `return_postponed`."""
        self.retrying += len(messages)

    def return_postponed(self, messages: list[Message]) -> bool:
        """Have postponed messages handed out again; False if this ownership ends, so that nothing is handed out."""
        self.retrying -= len(messages)
        if self.dropped or self.leaving:
            return False
        self.put_back(messages)
        return True

    def put_back(self, messages: list[Message]) -> None:
        """Have messages handed out again, at their places among those that wait: `finish` relies on that order."""
        waiting = self.waiting
        ordered = sorted([*messages, *waiting], key=self._order)
        waiting.clear()
        waiting.extend(ordered)

    def sort(self, rank: Callable[[Message], int]) -> None:
        """Have pending messages of the lowest rank handed out first, if their order does not matter; here it does."""

    @property
    def waiting(self) -> deque[Message]:
        """The messages that no handler has, and that could be handed out next."""
        return self.paused if self.is_paused else self.pending

    @property
    def waiting_count(self) -> int:
        """How many messages no handler has."""
        return len(self.pending) + len(self.paused)

    def pause(self) -> None:
        """Hand out nothing more until `resume`; handlers finish what they have."""
        self.is_paused = True
        self.paused.extend(self.pending)
        self.pending.clear()

    def resume(self) -> None:
        """Go on handing out."""
        self.is_paused = False
        self.pending.extend(self.paused)
        self.paused.clear()
        self._wake()

    def gather(self) -> bool:
        """Have the messages that no handler has wait until they fill a batch; returns whether there are any."""
        self.gathering = bool(self.pending)
        return self.gathering

    def end_gathering(self) -> None:
        """They have waited long enough."""
        self.gathering = False

    def finish(self, messages: list[Message]) -> None:
        """Mark messages as done: acknowledged, sent back, or dead-lettered."""
        count = len(messages)
        if count == 1:
            (message,) = messages
            message.finished = True
            block = message.block
            block.unfinished -= 1
            if not block.unfinished:
                self._forget(block)
        elif count and (block := messages[0].block).unfinished == count and messages[-1].block is block:
            # in queue order: the first and the last are of one block, so all are, and the block has no others
            messages[0].finished = True  # by which a late decision about the batch is seen
            block.unfinished = 0
            self._forget(block)
        else:
            for message in messages:
                message.finished = True
                block = message.block
                block.unfinished -= 1
                if not block.unfinished:
                    self._forget(block)
        self.cached_count -= count
        if self._relief is not None:
            self._wake()

    async def wait_relief(self) -> None:
        """Wait until messages are finished, or an operator resumes the queue; for one waiter at a time."""
        self._relief = asyncio.get_running_loop().create_future()
        try:
            await self._relief
        finally:
            self._relief = None

    def note_full(self, is_full: bool) -> None:
        """Note whether nothing is popped until some of its messages are acknowledged."""
        self.is_full = is_full

    @property
    def wants_relief(self) -> bool:
        """Whether nothing is pulled or popped until messages are finished."""
        return self.is_full or self._relief is not None

    def hold_uncommitted(self, messages: list[Message]) -> None:
        """Keep messages that the handler acknowledged; its `commit` finishes them."""
        self.uncommitted += messages

    def commit(self) -> None:
        """Finish what the handler acknowledged since its last commit."""
        # in queue order, which `finish` relies on
        done = sorted(self.uncommitted, key=self._order)
        self.uncommitted.clear()
        self.finish(done)

    def roll_back(self) -> list[Message]:
        """Forget what was acknowledged since the handler's last commit; returns those messages, to be handled again."""
        messages, self.uncommitted = self.uncommitted, []
        return messages

    def skip(self, message: Message) -> None:
        """Mark a message of a block that was not put yet as not wanted: the group's filter does not match it."""
        message.finished = True
        message.block.unfinished -= 1

    def is_late(self, message: Message) -> bool:
        """Whether another member has the message by now, so that its result here does not count; never if pulled."""
        return False

    def let_go(self, is_wanted: Callable[[Message], bool]) -> int:
        """Take what waits and is not wanted any more as finished; returns how many messages that are."""
        waiting = self.waiting
        unwanted = [message for message in waiting if not is_wanted(message)]
        if unwanted:
            wanted = [message for message in waiting if is_wanted(message)]
            waiting.clear()
            waiting.extend(wanted)
            self.finish(unwanted)
        return len(unwanted)

    def leave(self) -> None:
        """Hand out nothing more; what no handler has yet stays unfinished, so the commit offset does not pass it."""
        self.leaving = True
        self.resume()
        self.handed_out_to = self.pending[0].queue_offset if self.pending else self.next_offset
        self.cached_count -= len(self.pending)
        self.pending.clear()

    def finished_above(self) -> int:
        """After `leave`: how many finished messages lie above the commit offset; gaps in between count too."""
        return max(0, self.handed_out_to - self.commit_offset() - self.cached_count)

    def drop(self, because: str) -> None:
        """End this ownership: results that come later change nothing, and the cached bytes are let go.

        `because` is the cause under which what a handler still has counts as handled twice.
        """
        self.dropped, self.dropped_because = True, because
        self.pending.clear()
        self.paused.clear()
        self.uncommitted.clear()
        for block in self.blocks:
            block.messages.clear()
        self.blocks.clear()
        self.cached_count = self.cached_bytes = 0

    def commit_offset(self) -> int:
        """The offset below which every message is finished; never above the next one to pull."""
        oldest = self.oldest()
        return self.next_offset if oldest is None else min(oldest.queue_offset, self.next_offset)

    def reaches_past(self) -> bool:
        """Whether a message is cached at the next pull's offset or above it, because a correction lowered that offset.

        Replies must be put in the order of their offsets, or the first unfinished message is not the lowest one. So
        nothing is to be put before these messages are finished.
        """
        return bool(self.blocks) and self.blocks[-1].messages[-1].queue_offset >= self.next_offset

    def oldest(self) -> Message | None:
        """The first message that is not finished."""
        if not self.blocks:
            return None
        block = self.blocks[0]
        messages, cursor = block.messages, block.cursor
        while messages[cursor].finished:
            cursor += 1
        block.cursor = cursor
        return messages[cursor]

    def finished_behind(self) -> int:
        """How many finished messages are not below the commit offset, counted from the first block's beginning."""
        return self.put_count - self.blocks[0].put_before - self.cached_count if self.blocks else 0

    def span(self) -> int:
        """Greatest minus smallest cached offset."""
        oldest = self.oldest()
        return 0 if oldest is None else self.blocks[-1].messages[-1].queue_offset - oldest.queue_offset

    def _add(self, messages: Sequence[Message]) -> None:
        self.waiting.extend(messages)

    def _tell_idle(self) -> None:
        if self._idle is not None and not self.is_busy and not self._idle.done():
            self._idle.set_result(None)

    def _order(self, message: Message) -> Any:
        return message.queue_offset

    def _wake(self) -> None:
        if self._relief is not None and not self._relief.done():
            self._relief.set_result(None)

    def _forget(self, block: MessageBlock) -> None:
        blocks = self.blocks
        if blocks and blocks[0] is block:
            blocks.popleft()
        elif block in blocks:
            blocks.remove(block)
        else:  # dropped meanwhile
            return
        self.cached_bytes -= block.size_bytes
        # the list and the messages refer to each other: without this only the garbage collector would free them
        block.messages.clear()
