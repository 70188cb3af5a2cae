"""Opens the messages of a response: small work at once, longer work in one of rmqd's threads."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.wire.messages.message import Message, MessageBlock
from rmqd.wire.messages.opening import NO_LIMIT, Opening

THREADS: Final = 2  # per process; each decompresses one response, as far as there is room


async def open_pulled(block: MessageBlock, context: GroupContext, process_queue: ProcessQueue) -> bool:
    """Open a pull's messages as far as the queue's size threshold allows. Return whether the response is still valid.

    During work in a thread the group's filter may have changed, or an operator may have reset the queue. Then the
    messages were selected with outdated settings, and must be pulled again.
    """
    topic, offset = process_queue.message_queue.topic, process_queue.next_offset
    subscription = context.subscriptions[topic]
    room = context.thresholds.size_bytes - process_queue.cached_bytes
    must_stop = context.options.on_corrupt_message == "stop"  # at the first corrupt message, without opening others
    await open_bodies(block, context.options.max_body_size_bytes, room, offset, ends_at_corrupt=must_stop)
    is_same = context.subscriptions[topic] is subscription and process_queue.next_offset == offset
    return is_same and not process_queue.dropped


async def open_bodies(
    block: MessageBlock,
    max_body_size: int,
    room_bytes: int = NO_LIMIT,
    low: int = 0,
    *,
    unwraps: bool = True,
    ends_at_corrupt: bool = False,
) -> list[Message]:
    """Decompress messages and unwrap batches. Return the messages that were removed from the block.

    Removed are: all messages from the point at which their total exceeds `room_bytes`; members of a batch below the
    offset `low`; and, with `ends_at_corrupt`, the messages behind the first corrupt one. A batch counts as corrupt
    unless `unwraps`.
    """
    opening = Opening(block, max_body_size, room_bytes, low, unwraps=unwraps, ends_at_corrupt=ends_at_corrupt)
    if not opening.at_once():
        try:
            await asyncio.get_running_loop().run_in_executor(_threads(), opening.rest)
        finally:
            opening.cancelled = True  # after a cancellation, end the thread's work
    return opening.finish()


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the process's threads for decompression. Handlers may fill asyncio's own pool for minutes."""
    return ThreadPoolExecutor(THREADS, "rmqd-opening")
