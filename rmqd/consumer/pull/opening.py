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
    """Open what a pull of `queue` brought, as far as its size threshold has room; whether the answer still counts.

    Where that took a thread, the group's filter may have changed meanwhile, or an operator moved the queue: then the
    messages were chosen for what is asked no more, and are to be pulled again.
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
    """Open messages; leave out, and return, those from `cut_at` on where they become more than `room_bytes`.

    So are members of batches that lie below the offset `low`, and, where it `ends_at_corrupt`, what comes behind the
    first message that cannot be opened; where it `unwraps` none, a batch is corrupt.
    """
    opening = Opening(block, max_body_size, room_bytes, low, unwraps=unwraps, ends_at_corrupt=ends_at_corrupt)
    if not opening.at_once():
        try:
            await asyncio.get_running_loop().run_in_executor(_threads(), opening.rest)
        finally:
            opening.cancelled = True  # where it still runs, nobody waits for it any more
    return opening.finish()


@cache
def _threads() -> ThreadPoolExecutor:
    """Not asyncio's own: handlers may fill that with calls that take minutes."""
    return ThreadPoolExecutor(THREADS, "rmqd-opening")
