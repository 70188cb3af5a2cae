"""The process queue for `order_by`: the messages of each key are handed out in order and one at a time.

The first unfinished message of a key *holds* the key. The holder waits for a handler, is in flight, or is suspended
after a failure. The later messages of the key wait *behind* it and cannot be taken. When the holder is finished, the
next message holds the key. Messages without a key hold nothing and wait for nothing.

So finished messages may have much higher offsets than a message that waits for a slow key. The commit offset cannot
pass the waiting message, so the next owner would handle the finished messages again. Therefore the release of a queue
takes longer: it still hands out all messages below the highest finished or in-flight message, and discards only the
messages above. A message suspended after a failure gets one more attempt if it is below that highest message.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message

KeyOf = Callable[[Message], str | None]  # returns None or "" for no key
BELOW_ALL_OFFSETS: Final = -1
ABOVE_ALL_OFFSETS: Final = sys.maxsize


class _Held:
    __slots__ = ("behind", "holder")

    def __init__(self, holder: Message) -> None:
        self.holder = holder
        self.behind: deque[Message] = deque()


class KeyedProcessQueue(ProcessQueue):
    """The cache of one MessageQueue. At most one message of each key is in flight at a time."""

    __slots__ = ("_finished_to", "_granted", "_held", "_key_of", "_last_attempts", "_release_limit", "_suspended")

    def __init__(
        self, message_queue: MessageQueue, next_offset: int, stats: TopicStats, namespace: str, key_of: KeyOf
    ) -> None:
        super().__init__(message_queue, next_offset, stats, namespace)
        self._key_of = key_of
        self._held: dict[str, _Held] = {}
        self._finished_to = BELOW_ALL_OFFSETS  # the highest finished offset
        self._suspended: set[Message] = set()  # failed messages that wait for their next attempt
        # For a release: the offset below which messages are handed out, the failed messages that get one more attempt,
        # and the messages that already had this attempt.
        self._release_limit = ABOVE_ALL_OFFSETS
        self._granted: set[Message] = set()
        self._last_attempts: set[Message] = set()

    @property
    def waiting_count(self) -> int:
        return super().waiting_count + sum(len(held.behind) for held in self._held.values())

    @property
    def has_messages_waiting_for_key(self) -> bool:
        """Whether a message waits until an earlier message of its key is finished."""
        return any(held.behind for held in self._held.values())

    @property
    def is_busy(self) -> bool:
        return self.in_flight > 0 or (self.is_releasing and bool(self.pending or self._granted))

    def finish(self, messages: list[Message]) -> None:
        """Mark messages as finished, so that the next messages of their keys can be taken."""
        if len(messages) > 1:  # `ProcessQueue.finish` relies on queue order, but messages are taken in any order
            messages = sorted(messages, key=self._order)
        super().finish(messages)
        if messages:
            self._finished_to = max(self._finished_to, messages[-1].queue_offset)
        for message in messages:
            self._release(message)

    def discard_unwanted(self, is_wanted: Callable[[Message], bool]) -> int:
        unwanted = []
        for held in self._held.values():
            unwanted += [message for message in held.behind if not is_wanted(message)]
            held.behind = deque(message for message in held.behind if is_wanted(message))
        self.finish(unwanted)
        return len(unwanted) + super().discard_unwanted(is_wanted)

    def pause(self) -> None:
        if self.is_releasing:  # the drain must not wait for messages that are not handed out
            self.discard_waiting()
        super().pause()

    def start_release(self) -> None:
        """Start the release: hand out only messages below a finished or in-flight message; none if paused."""
        below = BELOW_ALL_OFFSETS if self.is_paused else max(self._finished_to, self._handed_out_to())
        self._release_limit, self.is_releasing = below, True
        self.resume()
        self._discard_waiting_from(below)
        self._grant_attempts(self._suspended)

    def postpone(self, messages: list[Message]) -> None:
        super().postpone(messages)
        self._suspended.update(messages)
        if self.is_releasing:
            self._grant_attempts(messages)

    def sort_pending(self, rank: Callable[[Message], int]) -> None:
        """Hand out the messages of the lowest rank first. Any order is valid, because their keys differ."""
        ordered = sorted(self.pending, key=rank)
        self.pending.clear()
        self.pending.extend(ordered)

    def return_postponed(self, messages: list[Message]) -> bool:
        """Hand out postponed messages again. During a release, only messages with a granted attempt are handed out."""
        self._suspended.difference_update(messages)
        if not self.is_releasing or self.dropped:
            return super().return_postponed(messages)
        self.retrying -= len(messages)
        again = [message for message in messages if message in self._granted]
        self._granted.difference_update(again)
        self._last_attempts.update(again)
        self.put_back(again)
        self._notify_idle()
        return bool(again)

    def finished_above_commit_offset(self) -> int:
        offsets = (message.queue_offset for block in self.blocks for message in block.messages if not message.finished)
        unfinished = sum(offset < self._finished_to for offset in offsets)
        return max(0, self._finished_to + 1 - self.commit_offset() - unfinished)

    def discard_waiting(self) -> None:
        """Discard all waiting messages during a release, so that only messages in flight remain."""
        self._discard_waiting_from(BELOW_ALL_OFFSETS)
        self._release_limit = BELOW_ALL_OFFSETS
        self._granted.clear()
        self._notify_idle()

    def drop(self, because: str) -> None:
        super().drop(because)
        self._held.clear()
        self._granted.clear()

    def _add(self, messages: Sequence[Message]) -> None:
        waiting, held_keys, key_of = self.waiting, self._held, self._key_of
        for message in messages:
            key = key_of(message)
            if not key:
                waiting.append(message)
            elif (held := held_keys.get(key)) is not None:
                held.behind.append(message)
            else:
                held_keys[key] = _Held(message)
                waiting.append(message)

    def _release(self, message: Message) -> None:
        key = self._key_of(message)
        held = self._held.get(key) if key else None
        if held is None or held.holder is not message:  # no key, corrupt, or discarded while waiting behind the holder
            return
        if held.behind:
            held.holder = held.behind.popleft()
            self.waiting.append(held.holder)
        else:
            del self._held[key]  # type: ignore[arg-type]

    def _grant_attempts(self, messages: Iterable[Message]) -> None:
        """Grant one more attempt to each of these failed messages that is below a finished or in-flight message."""
        handled_to = min(self._release_limit, max(self._finished_to, self._handed_out_to(but=self._suspended)))
        below = (message for message in messages if message.queue_offset < handled_to)
        self._granted.update(message for message in below if message not in self._last_attempts)

    def _handed_out_to(self, but: Collection[Message] = ()) -> int:
        """Return the highest offset of messages that are in flight or suspended, except the messages in `but`.

        Unfinished messages above `_release_limit` are ignored, because the release has discarded them.
        """
        others = {*self._all_waiting(), *but}
        for block in reversed(self.blocks):
            for message in reversed(block.messages):
                if not message.finished and message not in others and message.queue_offset <= self._release_limit:
                    return message.queue_offset
        return BELOW_ALL_OFFSETS

    def _all_waiting(self) -> Iterator[Message]:
        yield from self.waiting
        for held in self._held.values():
            yield from held.behind

    def _discard_waiting_from(self, offset: int) -> None:
        """Discard the waiting messages from `offset` on, without finishing them."""
        self.cached_count -= sum(message.queue_offset >= offset for message in self._all_waiting())
        waiting = [message for message in self.waiting if message.queue_offset < offset]
        self.waiting.clear()
        self.waiting.extend(waiting)
        for held in self._held.values():
            held.behind = deque(message for message in held.behind if message.queue_offset < offset)
