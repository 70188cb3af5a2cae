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
    """In place of a queue's lock."""

    valid = True


ENDLESS: Final = EndlessLease()


class EveryQueue:
    """The queues are everybody's at once: nobody to wait for, and nothing to lock, not in orderly groups either."""

    timeouts = 0

    async def members_are(self, address: str, client_ids: Collection[str]) -> None:
        """Of no interest."""

    async def break_locks(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """Nobody leaves locks behind."""

    async def acquire(self, queue: MessageQueue, lost: Callable[[], None], notice_seconds: float = 0.0) -> bool:
        """At once, and for ever."""
        return True

    async def release(self, queue: MessageQueue) -> None:
        """Nobody waits for it."""

    def linger(self, queue: MessageQueue) -> float:
        """Nothing would be gained."""
        return 0.0

    async def close(self, *, calls_left: bool) -> None:
        """Nobody waits for it."""

    def holds(self, queue: MessageQueue) -> bool:
        """Always."""
        return True

    def lease(self, queue: MessageQueue) -> EndlessLease:
        """What a batch of an orderly group is handed out under."""
        return ENDLESS

    async def run(self) -> None:
        """Nothing to keep."""


class NoWayBack:
    """A message that is given up is dropped, with a log line: the group has neither a retry topic nor dead letters.

    In a concurrent group the first failure is the last attempt, as in Java. An orderly one repeats in place first.
    """

    limit = "broadcasting groups have no retries"

    def __init__(self, options: ConsumerOptions) -> None:
        self._max = options.max_reconsume_times if options.consume_mode == "orderly" else 0
        if self._max > 0:
            self.limit = "max_reconsume_times reached"

    def is_last_attempt(self, message: Message) -> bool:
        """Whether the message is dropped if this attempt fails."""
        return self._max != NO_LIMIT and message.reconsume_times >= self._max

    def delay_level(self, message: Message, asked: int) -> int:
        """Of no meaning."""
        return asked

    async def retry(self, message: Message, delay_level: int) -> bool:
        """There is no other delivery; who asks has not asked `is_last_attempt`."""
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
