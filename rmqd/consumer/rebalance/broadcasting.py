"""Where a broadcasting group differs: every member has every queue, and nothing is delivered a second time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from rmqd.consumer.options import ConsumerOptions
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message

log = structlog.get_logger(__name__)

NO_LIMIT: Final = -1


class EndlessLease:
    """Stands in the place of a queue's lock, for handlers that look whether the queue is still theirs: it always is."""

    valid = True


ENDLESS: Final = EndlessLease()


class EveryQueue:
    """The ownership of a broadcasting group: every member has all queues at once, so nothing is locked or waited for.

    That holds for orderly groups too: the order within a queue is kept in each member by itself.
    """

    timeouts = 0

    async def members_are(self, address: str, client_ids: Collection[str]) -> None:
        """Do nothing: who else is in the group makes no difference to this member's queues."""

    def noticed(self) -> None:
        """Do nothing: who else is in the group makes no difference to this member's queues."""

    async def break_locks(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Do nothing: members that are gone have left no locks behind."""

    async def acquire(self, queue: MessageQueue, lost: Callable[[], None], notice_seconds: float = 0.0) -> bool:
        """Return at once: the queue may be consumed, and that never ends."""
        return True

    async def release(self, queue: MessageQueue) -> None:
        """Do nothing: nobody waits for the queue."""

    def linger(self, queue: MessageQueue) -> float:
        """Return 0: to keep the queue for longer would spare nobody a duplicate."""
        return 0.0

    async def close(self, *, calls_left: bool) -> None:
        """Do nothing: nobody waits for the queues."""

    def holds(self, queue: MessageQueue) -> bool:
        """Return True: a queue of a broadcasting group cannot be lost."""
        return True

    def lease(self, queue: MessageQueue) -> EndlessLease:
        """The lease under which a batch of an orderly group is handed out: one that never ends."""
        return ENDLESS

    async def run(self) -> None:
        """Return at once: there are no locks to renew."""


class NoWayBack:
    """A message that is given up is dropped, with a log line: the group has neither a retry topic nor dead letters.

    In a concurrent group the first failure is the last attempt, as in Java. An orderly one repeats in place first.
    """

    limit = "broadcasting groups have no retries"

    def __init__(self, options: ConsumerOptions) -> None:
        self._max = options.max_reconsume_times if options.consume_mode == "orderly" else 0
        if self._max > 0:
            self.limit = "max_reconsume_times reached"

    def is_last_attempt(self, message: Message, not_counted: int = 0) -> bool:
        """Whether the message is dropped if this attempt fails."""
        return self._max != NO_LIMIT and message.reconsume_times - not_counted >= self._max

    def delay_level(self, message: Message, asked: int) -> int:
        """Return a level that nobody uses, as nothing is sent back."""
        return asked

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Drop the message, as nothing can be delivered again; callers ask `is_last_attempt` before, which says so."""
        return await self.dead_letter(message, self.limit, None)

    async def dead_letter(self, message: Message, reason: str, error: BaseException | None) -> bool:
        """Drop the message."""
        log.warning(
            "message.dropped",
            queue=str(message.message_queue),
            offset=message.queue_offset,
            msg_id=message.msg_id,
            reason=reason,
        )
        return True
