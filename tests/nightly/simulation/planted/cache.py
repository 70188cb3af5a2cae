"""Bugs in finished messages, and in the offset that may be committed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.wire.messages.message import Message, MessageBlock
from tests.nightly.simulation.planted.registry import behind, both, hands_over, orderly, plant


@plant
def commit_before_finish(patch: pytest.MonkeyPatch) -> None:
    """Pulled messages are committed, whether or not a handler has finished them."""
    patch.setattr(ProcessQueue, "commit_offset", lambda self: self.next_offset)


@plant
def commit_one_too_many(patch: pytest.MonkeyPatch) -> None:
    """The first unfinished message counts as finished."""
    right = ProcessQueue.commit_offset
    patch.setattr(ProcessQueue, "commit_offset", lambda self: right(self) + bool(self.blocks))


@plant
def commit_one_too_few(patch: pytest.MonkeyPatch) -> None:
    """The last finished message counts as unfinished: the next owner handles it again."""
    right = ProcessQueue.commit_offset
    patch.setattr(ProcessQueue, "commit_offset", lambda self: max(0, right(self) - 1))


@plant
def commit_over_gaps(patch: pytest.MonkeyPatch) -> None:
    """The highest finished message decides the commit offset; lower unfinished messages are lost."""
    right, newest = ProcessQueue.finish, dict[ProcessQueue, int]()

    def finish(self: ProcessQueue, messages: list[Message]) -> None:
        if messages:
            newest[self] = max(newest.get(self, 0), messages[-1].queue_offset + 1)
        right(self, messages)

    patch.setattr(ProcessQueue, "finish", finish)
    offset = ProcessQueue.commit_offset
    patch.setattr(ProcessQueue, "commit_offset", lambda self: max(newest.get(self, 0), offset(self)))


@plant
def last_of_a_batch_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The last message of a batch of several counts as finished, and no handler gets it."""
    right = ProcessQueue.take

    def take(self: ProcessQueue, most: int) -> list[Message]:
        messages = right(self, most)
        if len(messages) > 1:
            self.finish([messages.pop()])
        return messages

    patch.setattr(ProcessQueue, "take", take)


@plant
def last_of_a_reply_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The last message of a response with at least 8 messages is skipped, as if a filter had excluded it."""
    right = ProcessQueue.put

    def put(self: ProcessQueue, block: MessageBlock, next_offset: int, held: Sequence[Message] = ()) -> None:
        if len(block.messages) >= 8:
            self.skip(block.messages[-1])
        right(self, block, next_offset, held)

    patch.setattr(ProcessQueue, "put", put)


@plant(needs=orderly)
def repeated_behind_the_others(patch: pytest.MonkeyPatch) -> None:
    """A message to retry is put behind all waiting messages, and not in offset order."""
    patch.setattr(ProcessQueue, "put_back", lambda self, messages: self.waiting.extend(messages))


@plant(needs=orderly)
def two_batches_swapped(patch: pytest.MonkeyPatch) -> None:
    """After a retry, the message behind the retried one comes first."""
    right = ProcessQueue.put_back

    def put_back(self: ProcessQueue, messages: list[Message]) -> None:
        right(self, messages)
        if len(self.waiting) > 1:
            self.waiting[0], self.waiting[1] = self.waiting[1], self.waiting[0]

    patch.setattr(ProcessQueue, "put_back", put_back)


@plant
def full_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Finished messages still count against the threshold of the cache: a full queue is never pulled again."""
    right = ProcessQueue.finish

    def finish(self: ProcessQueue, messages: list[Message]) -> None:
        right(self, messages)
        self.cached_count += len(messages)

    patch.setattr(ProcessQueue, "finish", finish)


@plant(needs=both(hands_over, behind))
def handed_out_while_given_up(patch: pytest.MonkeyPatch) -> None:
    """A queue that is being released still hands out its cached messages."""
    right = ProcessQueue.start_release

    def start_release(self: ProcessQueue) -> None:
        waiting = list(self.waiting)
        right(self)
        self.pending.extend(waiting)
        self.cached_count += len(waiting)

    patch.setattr(ProcessQueue, "start_release", start_release)


@plant(needs=both(hands_over, behind))
def given_up_counts_as_finished(patch: pytest.MonkeyPatch) -> None:
    """Messages that no handler had when the queue was released count as finished."""
    right = ProcessQueue.start_release

    def start_release(self: ProcessQueue) -> None:
        self.finish(list(self.waiting))
        self.waiting.clear()
        right(self)

    patch.setattr(ProcessQueue, "start_release", start_release)


@plant
def postponed_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A message that must be retried is never handed out again."""
    patch.setattr(ProcessQueue, "put_back", lambda self, messages: None)
