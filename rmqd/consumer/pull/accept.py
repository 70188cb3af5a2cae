"""Accepts the messages of a response, in the same steps for pulls, pops and ranges of Spark batches.

1. *Open* them: decompress bodies and unwrap batches that are stored as one record, as far as the cache has room. Small
   work is done at once, longer work in a thread. A message that cannot be opened is corrupt, like one with a wrong CRC.
2. *Set corrupt messages aside*, as `on_corrupt_message` specifies. They are logged and counted once, and skip filter
   and hooks, because their tags and properties may be corrupt too.
3. *Select*: first by tag, because brokers compare only hashes of tags, then by the hooks, which see only messages that
   a handler would get. An unwanted message counts as finished.
4. *Count* the wanted messages, for the rate limit and the metrics.
5. *Put* all messages into the process queue, and notify the service.

`MessageAcceptor.accept` does steps 3 to 5 without waiting. The first two steps depend on how the messages were fetched:

- **A pull.** Once a commit has passed a message, it is never pulled again. So a message counts as corrupt only after
  two responses with the same bytes (`response_validation`). A message that must be dead-lettered stays in the cache
  until a broker has accepted it, so that no commit passes it (`CorruptMessages`). With the policy `stop`, pulling stops
  at the message.
- **A pop.** The broker redelivers each message that is not acknowledged in time. So one response is enough to treat a
  message as corrupt, and with `stop` it blocks no others. An unwanted message is acknowledged like a handled message.
- **A range** of a Spark batch is read again completely after a failure. So one response is enough. A corrupt message is
  dead-lettered before any message behind it is put. With the policy `stop`, the range ends before the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

import structlog

from rmqd.consumer.cache.flow_control import RateLimit
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import OnCorruptMessage
from rmqd.consumer.context import GroupContext
from rmqd.consumer.hooks import GroupHooks
from rmqd.consumer.services import ConsumeMessageService, RetryPolicy
from rmqd.wire.messages.compression import NO_SIZE_LIMIT, BlockDecompression
from rmqd.wire.messages.message import Message, MessageBlock

DECOMPRESSION_THREADS: Final = 2  # per process; each decompresses one response, as far as there is room


async def decompress_pulled(block: MessageBlock, context: GroupContext, process_queue: ProcessQueue) -> bool:
    """Open a pull's messages as far as the queue's size threshold allows. Return whether the response is still valid.

    While a thread decompresses, the group's filter may change, or an operator may reset the queue. Then the response is
    outdated, and the messages must be pulled again.
    """
    topic, offset = process_queue.message_queue.topic, process_queue.next_offset
    subscription = context.subscriptions[topic]
    room = context.thresholds.size_bytes - process_queue.cached_bytes
    # with `stop`, no message behind the first corrupt one is needed, so none is decompressed
    must_stop = context.options.on_corrupt_message == "stop"
    await decompress_bodies(block, context.options.max_body_size_bytes, room, offset, ends_at_corrupt=must_stop)
    is_same = context.subscriptions[topic] is subscription and process_queue.next_offset == offset
    return is_same and not process_queue.dropped


async def decompress_bodies(
    block: MessageBlock,
    max_body_size: int,
    room_bytes: int = NO_SIZE_LIMIT,
    low: int = 0,
    *,
    unwraps: bool = True,
    ends_at_corrupt: bool = False,
) -> list[Message]:
    """Decompress messages and unwrap batches. Return the messages that were removed from the block.

    These are all messages from the point at which the total size exceeds `room_bytes`; messages of a batch below the
    offset `low`; and, with `ends_at_corrupt`, the messages behind the first corrupt message. If `unwraps` is False, a
    batch in one record counts as a corrupt message.
    """
    opening = BlockDecompression(
        block, max_body_size, room_bytes, low, unwraps=unwraps, ends_at_corrupt=ends_at_corrupt
    )
    if not opening.open_quickly():
        try:
            await asyncio.get_running_loop().run_in_executor(_threads(), opening.rest)
        finally:
            opening.cancelled = True  # ends the work in the thread after a cancellation
    return opening.finish()


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the process's threads for decompression. Handlers may fill asyncio's own pool for minutes."""
    return ThreadPoolExecutor(DECOMPRESSION_THREADS, "rmqd-opening")


log = structlog.get_logger(__name__)


class MessageAcceptor:
    """Selects and counts the messages of one loop's responses, and puts them into the cache (steps 3 to 5 above)."""

    def __init__(
        self, service: ConsumeMessageService, hooks: GroupHooks | None, rate_limit: RateLimit | None = None
    ) -> None:
        self._service = service
        self._hooks = hooks if hooks is not None and hooks.has_filters else None
        self._rate_limit = rate_limit
        self._tags = frozenset[bytes]()

    def select_tags(self, tags: Iterable[str]) -> None:
        """Select messages with one of these tags from now on; all messages if there are no tags."""
        self._tags = frozenset(tag.encode() for tag in tags)

    def discard_unwanted(self, process_queue: ProcessQueue) -> int:
        """Finish the cached messages that the current tags do not select. Return their number."""
        return process_queue.discard_unwanted(lambda message: message.has_tag(self._tags)) if self._tags else 0

    def accept(
        self, block: MessageBlock, process_queue: ProcessQueue, next_offset: int, corrupt: Sequence[Message] = ()
    ) -> None:
        """Pass a response's messages to the handlers, and set the next offset to `next_offset`.

        The `corrupt` messages are not in the block. They are cached at their offsets, and not handed out.
        """
        if self._tags:
            for message in block.messages:
                if not message.has_tag(self._tags):
                    process_queue.skip(message)
        if self._hooks is not None:
            for message in self._hooks.unwanted_messages(block.messages, process_queue.public_queue):
                process_queue.skip(message)
        if self._rate_limit is not None and self._rate_limit.per_second:
            self._rate_limit.charge(block.unfinished)
        process_queue.stats.count_pulled(block)
        if corrupt:
            block.messages = sorted([*block.messages, *corrupt], key=lambda message: message.queue_offset)
            block.unfinished += len(corrupt)
        process_queue.put(block, next_offset, corrupt)
        self._service.submit(process_queue)


def log_corrupt(
    process_queue: ProcessQueue, message: Message, offset: int, reason: str, policy: OnCorruptMessage
) -> None:
    """Count and log a corrupt message at this offset of the queue."""
    process_queue.stats.of(message).count("corrupt")
    log.error(
        "message.corrupt",
        queue=str(process_queue.message_queue),
        offset=offset,
        reason=reason,
        on_corrupt_message=policy,
    )


async def dead_letter_corrupt(
    retry_policy: RetryPolicy, process_queue: ProcessQueue, message: Message, reason: str
) -> bool:
    """Try once to dead-letter a corrupt message. Return whether a broker accepted it."""
    is_taken = await retry_policy.dead_letter(message, reason, None)
    if is_taken:
        process_queue.stats.of(message).count_dead_letter("corrupt", reason)
    return is_taken
