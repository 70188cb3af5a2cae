"""The cache of one ownership of a queue: its messages between pull and commit.

A message passes through these states, in this order:

- pulled: its block, which is one response of the broker, is in `blocks`. It counts in `cached_count` until it is
  finished.
- pending: it waits for a worker, in `pending`, or in `paused` while an operator pauses the queue.
- in flight: a handler has it. If it must be handled again here, it is postponed for a while, and then pending again.
- finished: acknowledged, sent back, dead-lettered, or skipped because the group does not want it. If the handler
  commits (`auto_commit: false`), an acknowledged message is first uncommitted, and the handler's commit finishes it.
- committed: it is below the offset that the offset store has written. This class decides which offset may be written.

The broker keeps one offset per group and queue, and regards all messages below it as consumed. So the commit offset is
the first unfinished offset. Messages finish in any order. A slow message holds the offset back while later ones finish.
If the process dies now, the finished messages above the slow one are delivered again. A commit above the slow message
would lose it. If nothing is cached, the commit offset is the offset of the next pull, which is above the last message
if the broker's filter skipped some.

Blocks are in queue order and leave `blocks` when their last message is finished. So the first block contains the first
unfinished message. The block's cursor only moves up, and finds that message without checking a message twice.

An offset can change in two ways. A correction keeps the cache and continues to pull at another offset (`continue_at`).
The commit offset never exceeds that offset. If that offset is below cached messages, no response is put until those are
finished. An operator's reset drops the cache, and a new ProcessQueue starts at the new offset. Messages of the dropped
cache that are still in flight are neither finished nor committed when their handlers return.

Only the methods change the state; any caller may read it. There are two exceptions. For speed, a worker with a batch
size of one takes messages from `pending` directly. And callers set four attributes directly: `awaits_lock`,
`is_batching`, `is_full` and `unavailable`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, Final

from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message, MessageBlock


class ProcessQueue:
    """The cache of one MessageQueue. No I/O, no knowledge of consumers; used from the event loop only."""

    __slots__ = (
        "_idle",
        "_relief",
        "awaits_lock",
        "blocks",
        "cached_bytes",
        "cached_count",
        "dropped",
        "dropped_because",
        "handed_out_to",
        "in_flight",
        "is_batching",
        "is_full",
        "is_paused",
        "is_releasing",
        "last_store_timestamp",
        "message_queue",
        "newest_store_timestamp",
        "next_offset",
        "paused",
        "pending",
        "public_queue",
        "put_count",
        "retrying",
        "stats",
        "unavailable",
        "uncommitted",
    )

    def __init__(self, message_queue: MessageQueue, next_offset: int, stats: TopicStats, namespace: str = "") -> None:
        self.message_queue: Final = message_queue
        self.public_queue: Final = message_queue.without(namespace)  # shown to handlers, without the namespace
        self.stats: Final = stats  # for the queue's topic
        self.next_offset = next_offset  # start of the next pull
        self.blocks: list[MessageBlock] = []  # few; responses with unfinished messages, in queue order
        self.pending: Final[deque[Message]] = deque()  # messages that can be handed out now
        self.paused: Final[list[Message]] = []  # the pending messages while an operator pauses the queue
        self.is_paused = False
        self.unavailable = (0.0, "")  # until when (Unix) the handler's target is unavailable, and why
        self.uncommitted: list[Message] = []  # acknowledged messages that wait for the handler's commit
        self.put_count = 0  # all messages put so far, except unwanted ones
        self.cached_count = 0  # unfinished messages: waiting, postponed or in flight
        self.cached_bytes = 0  # size of `blocks`
        self.in_flight = 0  # workers processing this queue; each has at most one batch in flight
        self.awaits_lock = False  # the queue's lock was lost: nothing is handed out until the stored offset is checked
        self.is_full = False  # pulls or pops wait until some messages are finished
        self.is_batching = False  # messages wait until they fill a batch
        self.retrying = 0  # postponed messages, which wait for `return_postponed`
        self.is_releasing = False  # the release has started: nothing more is handed out, messages in flight may finish
        self.dropped = False  # this ownership has ended: results that arrive later are discarded
        self.dropped_because = ""  # the cause that counts the resulting duplicates
        self.handed_out_to = 0  # set by `start_release`: only messages below this offset were handed out
        self.last_store_timestamp = 0  # last message of the last block, in Unix milliseconds
        self.newest_store_timestamp = 0  # newest message that was put or skipped by the broker, in Unix milliseconds
        self._relief: asyncio.Future[None] | None = None  # the future that wait_for_room awaits
        self._idle: asyncio.Future[None] | None = None  # the future that wait_idle awaits

    def put(self, block: MessageBlock, next_offset: int, held: Sequence[Message] = ()) -> None:
        """Add a response's messages, and set the offset of the next pull to `next_offset`.

        Messages in `held` are corrupt and not handed out: the pull loop dead-letters them. The commit offset does not
        pass them before the pull loop has finished them.
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
        block.earlier_message_count = self.put_count
        self.put_count += block.unfinished
        self.cached_count += block.unfinished
        self.cached_bytes += block.size_bytes
        self.last_store_timestamp = stored_ms

    def continue_at(self, offset: int) -> None:
        """Set the offset of the next pull, after an empty response or a corrected offset. Cached messages stay."""
        self.next_offset = offset

    def note_skipped_by_broker(self, stored_ms: int) -> None:
        """Record that messages stored up to this time were pulled before, or skipped by the broker's filter."""
        self.newest_store_timestamp = max(self.newest_store_timestamp, stored_ms)

    def take(self, most: int) -> list[Message]:
        """Remove and return up to `most` pending messages, in queue order."""
        pending = self.pending
        if len(pending) <= most:
            messages = list(pending)
            pending.clear()
            return messages
        return [pending.popleft() for _ in range(most)]

    def return_taken(self, messages: Sequence[Message]) -> None:
        """Put the last messages of a `take` back, before all other pending messages."""
        self.pending.extendleft(reversed(messages))

    def begin_turn(self) -> None:
        """Called when a worker starts to take batches. Until `end_turn` it has at most one batch at a time."""
        self.in_flight += 1

    def end_turn(self) -> None:
        """Called when the worker's last batch has ended."""
        self.in_flight -= 1
        self._notify_idle()

    @property
    def is_busy(self) -> bool:
        """Whether a batch is in flight or, during a release, messages must still be handed out."""
        return self.in_flight > 0

    async def wait_idle(self) -> None:
        """Wait until the queue is not busy. Supports one waiter at a time."""
        if self.is_busy:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def postpone(self, messages: list[Message]) -> None:
        """Keep messages that will be handled again here. After a pause, the caller calls `return_postponed`."""
        self.retrying += len(messages)

    def return_postponed(self, messages: list[Message]) -> bool:
        """Hand out postponed messages again. Return False, and hand out none, if this ownership is ending."""
        self.retrying -= len(messages)
        if self.dropped or self.is_releasing:
            return False
        self.put_back(messages)
        return True

    def put_back(self, messages: list[Message]) -> None:
        """Hand out messages again. Sort all waiting messages by offset, because `finish` relies on this order."""
        waiting = self.waiting
        ordered = sorted([*messages, *waiting], key=self._order)
        waiting.clear()
        waiting.extend(ordered)

    def sort_pending(self, rank: Callable[[Message], int]) -> None:
        """Do nothing, to keep the queue order. A KeyedProcessQueue puts pending messages of the lowest rank first."""

    @property
    def waiting(self) -> MutableSequence[Message]:
        """The messages that wait to be handed out: `paused` while an operator pauses the queue, otherwise `pending`."""
        return self.paused if self.is_paused else self.pending

    @property
    def waiting_count(self) -> int:
        """How many messages wait to be handed out. Postponed messages are not included."""
        return len(self.pending) + len(self.paused)

    def next_block_number(self) -> int:
        """Return the number of the popped block with the next pending message; 0 in a pulled queue."""
        return 0

    def pause(self) -> None:
        """Stop handing out messages until `resume`; messages in flight finish."""
        self.is_paused = True
        self.paused.extend(self.pending)
        self.pending.clear()

    def resume(self) -> None:
        self.is_paused = False
        self.pending.extend(self.paused)
        self.paused.clear()
        self._wake()

    def hold_until_batch_is_full(self) -> bool:
        """Hold the waiting messages until they fill a batch. Return whether there are any."""
        self.is_batching = bool(self.pending)
        return self.is_batching

    @property
    def cannot_fill_batch(self) -> bool:
        """Whether the waiting messages cannot become a full batch: the cache is full, and all its messages wait."""
        return self.is_batching and self.is_full and self.cached_count == len(self.pending)

    def finish(self, messages: list[Message]) -> None:
        """Mark messages, in queue order, as finished: acknowledged, sent back, dead-lettered or unwanted."""
        count = len(messages)
        if count == 1:
            (message,) = messages
            message.finished = True
            block = message.block
            block.unfinished -= 1
            if not block.unfinished:
                self._forget(block)
        elif count and (block := messages[0].block).unfinished == count and messages[-1].block is block:
            # Messages are in queue order. If the first and the last belong to one block, all do. Their number then
            # equals the block's unfinished messages, so the whole block is finished.
            messages[0].finished = True  # `Batch` checks this flag to reject a late decision
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

    async def wait_for_room(self) -> None:
        """Wait until messages are finished or an operator resumes the queue. Supports one waiter at a time."""
        self._relief = asyncio.get_running_loop().create_future()
        try:
            await self._relief
        finally:
            self._relief = None

    @property
    def waits_for_room(self) -> bool:
        """Whether pulls or pops wait until messages are finished."""
        return self.is_full or self._relief is not None

    def hold_uncommitted(self, messages: list[Message]) -> None:
        """Keep acknowledged messages until the handler's `commit` finishes them."""
        self.uncommitted += messages

    def commit(self) -> None:
        """Finish the messages that the handler acknowledged since its last commit."""
        # `finish` expects messages sorted by offset
        done = sorted(self.uncommitted, key=self._order)
        self.uncommitted.clear()
        self.finish(done)

    def roll_back(self) -> list[Message]:
        """Return the messages acknowledged since the handler's last commit, which will be handled again."""
        messages, self.uncommitted = self.uncommitted, []
        return messages

    def skip(self, message: Message) -> None:
        """Finish a message that the group's filter rejects. Called before `put` adds the message's block."""
        message.finished = True
        message.block.unfinished -= 1

    def may_be_redelivered(self, message: Message) -> bool:
        """Return whether another member may have this popped message by now, so that its result here is ignored."""
        return False

    def discard_unwanted(self, is_wanted: Callable[[Message], bool]) -> int:
        """Finish the waiting messages that a changed filter no longer selects. Return their number."""
        waiting = self.waiting
        unwanted = [message for message in waiting if not is_wanted(message)]
        if unwanted:
            wanted = [message for message in waiting if is_wanted(message)]
            waiting.clear()
            waiting.extend(wanted)
            self.finish(unwanted)
        return len(unwanted)

    def start_release(self) -> None:
        """Start the release: hand out nothing more. The commit offset does not pass the unfinished messages."""
        self.is_releasing = True
        self.resume()
        self.handed_out_to = self.pending[0].queue_offset if self.pending else self.next_offset
        self.cached_count -= len(self.pending)
        self.pending.clear()

    def finished_above_commit_offset(self) -> int:
        """Return, after `start_release`, how many offsets above the commit offset are finished, gaps included."""
        return max(0, self.handed_out_to - self.commit_offset() - self.cached_count)

    def drop(self, because: str) -> None:
        """End this ownership: later results have no effect, and the cached messages are freed.

        Messages in flight count as duplicates with the cause `because`.
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
        """Return the offset below which every message is finished; never above the next offset to pull."""
        oldest = self.oldest()
        return self.next_offset if oldest is None else min(oldest.queue_offset, self.next_offset)

    def next_pull_overlaps_cache(self) -> bool:
        """Return whether a correction lowered the next pull's offset to a cached message's offset, or below.

        Blocks must be put in offset order, because `oldest` returns the first unfinished message. So nothing may be put
        before these cached messages are finished.
        """
        return bool(self.blocks) and self.blocks[-1].messages[-1].queue_offset >= self.next_offset

    def oldest(self) -> Message | None:
        """Return the first unfinished message, or None."""
        if not self.blocks:
            return None
        block = self.blocks[0]
        messages, cursor = block.messages, block.cursor
        while messages[cursor].finished:
            cursor += 1
        block.cursor = cursor
        return messages[cursor]

    def finished_since_first_block(self) -> int:
        """Return how many messages are finished since the first cached block, including all above the commit offset."""
        return self.put_count - self.blocks[0].earlier_message_count - self.cached_count if self.blocks else 0

    def span(self) -> int:
        """Return the distance from the first unfinished offset to the highest cached offset; 0 if nothing is cached."""
        oldest = self.oldest()
        return 0 if oldest is None else self.blocks[-1].messages[-1].queue_offset - oldest.queue_offset

    def _add(self, messages: Sequence[Message]) -> None:
        self.waiting.extend(messages)

    def _notify_idle(self) -> None:
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
            del blocks[0]
        elif block in blocks:
            blocks.remove(block)
        else:  # `drop` has removed all blocks meanwhile
            return
        self.cached_bytes -= block.size_bytes
        # break the reference cycle of block and messages, which only the garbage collector would free
        block.messages.clear()
