"""Opens what a reply brought: a little at once, and what may keep the event loop in a thread of rmqd's own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.wire.messages.message import Message, MessageBlock
from rmqd.wire.messages.opening import NO_LIMIT, Opening

THREADS: Final = 2  # of the process; each decompresses one reply, as far as there is room for it


async def open_pulled(block: MessageBlock, context: GroupContext, process_queue: ProcessQueue) -> bool:
    """Open what a pull brought, as far as the queue's size threshold has room. Returns whether the answer still counts.

    Where that took a thread, the group's filter may have changed meanwhile, or an operator moved the queue. Then the
    messages were chosen by what is not asked for any more, and have to be pulled again.
    """
    topic, offset = process_queue.message_queue.topic, process_queue.next_offset
    subscription = context.subscriptions[topic]
    room = context.thresholds.size_bytes - process_queue.cached_bytes
    must_stop = context.options.on_corrupt_message == "stop"  # at the first one: no other is looked at
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
    """Decompress messages and unwrap batches. Returns the messages that were left out of the block.

    Left out are the messages from the one on that would make all of them more than `room_bytes`; members of a batch
    below the offset `low`; and, with `ends_at_corrupt`, those behind the first message that cannot be opened. A batch
    counts as corrupt unless `unwraps`.
    """
    opening = Opening(block, max_body_size, room_bytes, low, unwraps=unwraps, ends_at_corrupt=ends_at_corrupt)
    if not opening.at_once():
        try:
            await asyncio.get_running_loop().run_in_executor(_threads(), opening.rest)
        finally:
            opening.cancelled = True  # ends a thread's work that nobody waits for, if this was cancelled
    return opening.finish()


@cache
def _threads() -> ThreadPoolExecutor:
    """The process's threads for opening; not asyncio's own pool, which handlers may fill for minutes."""
    return ThreadPoolExecutor(THREADS, "rmqd-opening")
