"""What becomes of the messages that a reply brought: in one order for pulls, for pops, and for ranges of Spark batches.

1. *Open* them (`opening`): compressed bodies, and batches that are stored as one record, as far as the cache has room.
   A message that cannot be opened is corrupt, as one is whose CRC is wrong.
2. *Set the corrupt ones aside*, as `on_corrupt_message` says. They are told of and counted once, and neither the filter
   nor a hook is asked about them: their tags and properties may be as wrong as their bodies.
3. *Choose*: the rest by tag, as brokers compare only hashes of tags, and then by the hooks, which are asked only about
   messages that a handler would get. What is not wanted counts as finished.
4. *Count* what is wanted, for the rate limit and in the figures.
5. *Put* all into the process queue, and have the service hand it out.

`Arrivals.take` does 3 to 5, without waiting for anything. The first two steps differ by what follows where a message is
not finished:

- **A pull** is the only way to the message, and a commit passes it for good. So a message counts as corrupt when two
  replies have had the same bytes (`evidence`). One that is to be dead-lettered stays in the cache until a broker took
  it, so that no commit passes it (`corrupt_messages`); by the policy `stop` the queue is pulled no further.
- **A pop** is repeated by the broker, for every message that is not acknowledged in time. So the first reading counts,
  a corrupt message that is left alone stops no others, and what is not wanted is acknowledged as if it were handled.
- **A range** of a Spark batch is read anew as a whole where it fails. So the first reading counts, a corrupt message is
  dead-lettered before anything behind it is put, and by the policy `stop` the range ends before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.cache.rate_limit import RateLimit
from rmqd.consumer.hooks import GroupHooks
from rmqd.consumer.options import OnCorruptMessage
from rmqd.consumer.services import ConsumeMessageService, WaysBack
from rmqd.wire.messages.message import Message, MessageBlock

log = structlog.get_logger(__name__)

CORRUPT_ADVICE = "move the offset with `rmqd offsets reset`, or set on_corrupt_message and reload"


class Arrivals:
    """Takes in the messages of one group's replies, by one filter."""

    def __init__(
        self, service: ConsumeMessageService, hooks: GroupHooks | None, rate_limit: RateLimit | None = None
    ) -> None:
        self._service = service
        self._hooks = hooks if hooks is not None and hooks.choose else None
        self._rate_limit = rate_limit
        self._tags = frozenset[bytes]()

    def choose_by(self, tags: Iterable[str]) -> None:
        """Take messages with one of these tags only from now on; all messages, where there is none."""
        self._tags = frozenset(tag.encode() for tag in tags)

    def let_go(self, process_queue: ProcessQueue) -> int:
        """Take those cached messages as finished that have none of the tags; returns how many."""
        return process_queue.let_go(lambda message: message.has_tag(self._tags)) if self._tags else 0

    def take(
        self, block: MessageBlock, process_queue: ProcessQueue, next_offset: int, corrupt: Sequence[Message] = ()
    ) -> None:
        """Have a reply's messages handled, and move on to `next_offset`.

        The `corrupt` ones are not in the block. They are cached at their places, and no handler gets them.
        """
        if self._tags:
            for message in block.messages:
                if not message.has_tag(self._tags):
                    process_queue.skip(message)
        if self._hooks is not None:
            for message in self._hooks.unwanted(block.messages, process_queue.handed_as):
                process_queue.skip(message)
        if self._rate_limit is not None and self._rate_limit.per_second:
            self._rate_limit.spend(block.unfinished)
        process_queue.stats.pulled(block)
        if corrupt:
            block.messages = sorted([*block.messages, *corrupt], key=lambda message: message.queue_offset)
            block.unfinished += len(corrupt)
        process_queue.put(block, next_offset, corrupt)
        self._service.submit(process_queue)


def tell_corrupt(
    process_queue: ProcessQueue, message: Message, offset: int, reason: str, policy: OnCorruptMessage
) -> None:
    """Count and log a corrupt message, which is at this offset of the queue."""
    process_queue.stats.of(message).count("corrupt")
    log.error(
        "message.corrupt",
        queue=str(process_queue.message_queue),
        offset=offset,
        reason=reason,
        on_corrupt_message=policy,
    )


async def dead_letter_corrupt(ways_back: WaysBack, process_queue: ProcessQueue, message: Message, reason: str) -> bool:
    """Try once to dead-letter a corrupt message; whether a broker took it."""
    is_taken = await ways_back.dead_letter(message, reason, None)
    if is_taken:
        process_queue.stats.of(message).dead_lettered("corrupt", reason)
    return is_taken
