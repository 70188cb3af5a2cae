"""What one ownership of a queue holds: messages pulled, handed out, and finished.

The offset to commit is the smallest one that is not finished; with nothing cached it is the next one to pull, so that
messages which the broker's filter passed over count as consumed.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Callable, Sequence

from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message, MessageBlock


class ProcessQueue:
    """The cache of one MessageQueue. Does no I/O and knows no consumer; used from the event loop only."""

    __slots__ = (
        "blocks",
        "cached_bytes",
        "cached_count",
        "dropped",
        "dropped_because",
        "handed_as",
        "handed_out_to",
        "idle",
        "in_flight",
        "is_paused",
        "last_store_timestamp",
        "leaving",
        "message_queue",
        "newest_store_timestamp",
        "next_offset",
        "paused",
        "pending",
        "queued",
        "relief",
        "retrying",
        "stats",
        "uncommitted",
    )

    def __init__(self, message_queue: MessageQueue, next_offset: int, stats: TopicStats, namespace: str = "") -> None:
        self.message_queue = message_queue
        self.handed_as = message_queue.without(namespace)  # what handlers are told that it is
        self.stats = stats  # of the queue's topic
        self.next_offset = next_offset  # where the next pull starts
        self.blocks: deque[MessageBlock] = deque()  # replies with unfinished messages, in queue order
        self.pending: deque[Message] = deque()  # not handed out yet
        self.paused: deque[Message] = deque()  # not to be handed out, because an operator paused the queue
        self.is_paused = False
        self.uncommitted: list[Message] = []  # handled, and finished once the handler commits
        self.cached_count = 0  # not finished: waiting or being handled
        self.cached_bytes = 0
        self.in_flight = 0  # batches that a handler has now
        self.retrying = 0  # messages that wait for another try of their send-back
        self.leaving = False  # being given up: nothing more is handed out, what handlers have may finish
        self.dropped = False  # owned no more: results that still come are thrown away
        self.dropped_because = ""  # the cause of the duplicates that come of it
        self.handed_out_to = 0  # when it was left: no message from this offset on was handed out
        self.queued = False  # stands in the dispatcher's line
        self.last_store_timestamp = 0
        self.newest_store_timestamp = 0  # a message that is stored later was never here
        self.relief: Future[None] | None = None  # a pull loop that waits until messages are finished
        self.idle: Future[None] | None = None  # whoever waits until nothing is in flight

    def put(self, block: MessageBlock, next_offset: int, held: Sequence[Message] = ()) -> None:
        """Add a reply's messages and move on to `next_offset`; no handler gets those that are `held`."""
        self.next_offset = next_offset
        messages = block.messages
        if messages and messages[-1].store_timestamp > self.newest_store_timestamp:
            self.newest_store_timestamp = messages[-1].store_timestamp
        if not block.unfinished:
            messages.clear()
            return
        self.blocks.append(block)
        waiting = self.paused if self.is_paused else self.pending
        if held:
            waiting.extend([message for message in messages if not (message.finished or message in held)])
        elif block.unfinished == len(messages):
            waiting.extend(messages)
        else:
            waiting.extend([message for message in messages if not message.finished])
        self.cached_count += block.unfinished
        self.cached_bytes += block.size_bytes
        self.last_store_timestamp = messages[-1].store_timestamp

    def is_as_new_as(self, stored_ms: int) -> None:
        """What was stored until then was passed over, as the group did not want it."""
        self.newest_store_timestamp = max(self.newest_store_timestamp, stored_ms)

    def take(self, most: int) -> list[Message]:
        """Hand out up to `most` messages, in queue order."""
        pending = self.pending
        if most == 1:
            return [pending.popleft()]
        if len(pending) <= most:
            messages = list(pending)
            pending.clear()
            return messages
        return [pending.popleft() for _ in range(most)]

    def put_back(self, messages: list[Message]) -> None:
        """Hand these out again; what waits stays in queue order, which `finish` relies on."""
        waiting = self.paused if self.is_paused else self.pending
        ordered = sorted([*messages, *waiting], key=lambda message: message.queue_offset)
        waiting.clear()
        waiting.extend(ordered)

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
            block.unfinished = 0  # all that is left of one reply: in queue order, those between are of it too
            self._forget(block)
        else:
            for message in messages:
                message.finished = True
                block = message.block
                block.unfinished -= 1
                if not block.unfinished:
                    self._forget(block)
        self.cached_count -= count
        if self.relief is not None and not self.relief.done():
            self.relief.set_result(None)

    def skip(self, message: Message) -> None:
        """Mark a message of a block that was not put yet as not wanted: the group's filter does not match it."""
        message.finished = True
        message.block.unfinished -= 1

    def is_late(self, message: Message) -> bool:
        """Whether somebody else has the message by now, so that what became of it here does not count."""
        return False

    def let_go(self, is_wanted: Callable[[Message], bool]) -> int:
        """Take what waits and is not wanted any more as finished; returns how many messages that are."""
        waiting = self.paused if self.is_paused else self.pending
        unwanted = [message for message in waiting if not is_wanted(message)]
        if unwanted:
            wanted = [message for message in waiting if is_wanted(message)]
            waiting.clear()
            waiting.extend(wanted)
            self.finish(unwanted)
        return len(unwanted)

    def note_idle(self) -> None:
        """Tell who waits for it if no handler has a batch any more."""
        if self.idle is not None and not self.in_flight and not self.idle.done():
            self.idle.set_result(None)

    def leave(self) -> None:
        """Hand out nothing more; what no handler has yet stays unfinished, so the commit offset does not pass it."""
        self.leaving = True
        self.resume()
        self.handed_out_to = self.pending[0].queue_offset if self.pending else self.next_offset
        self.cached_count -= len(self.pending)
        self.pending.clear()

    def finished_above(self) -> int:
        """After `leave`: how many finished messages the commit offset leaves out; at most, where offsets have gaps."""
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
        """Whether what is cached reaches to the next offset: it was moved down since.

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

    def span(self) -> int:
        """Greatest minus smallest cached offset."""
        oldest = self.oldest()
        return 0 if oldest is None else self.blocks[-1].messages[-1].queue_offset - oldest.queue_offset

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
