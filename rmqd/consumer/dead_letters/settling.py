"""Settles dead letters without a replay, and commits a group's offset in its dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from rmqd.client.api.offset import update_consumer_offset
from rmqd.consumer.dead_letters.choice import Choice
from rmqd.consumer.dead_letters.marks import Marks
from rmqd.consumer.dead_letters.reading import LetterQueue, letters_left

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance


async def purge(client: ClientInstance, queue: LetterQueue, marks: Marks, choice: Choice) -> AsyncIterator[int]:
    """Settle the chosen letters of a queue. Yields the number of letters after each part. Raises RmqdError."""
    async for letters in letters_left(client.remoting, queue):
        meant = [letter for letter in letters if choice.takes(letter)]
        for letter in meant:
            marks.settle(queue.place, letter.offset, letter.replay_id)
            queue.settled.add(letter.offset)
        if meant:
            marks.save()
            yield len(meant)
    await keep_position(client, queue)


async def keep_position(client: ClientInstance, queue: LetterQueue) -> None:
    """Commit the first letter that is left as the group's offset in the queue. Raises RmqdError.

    This shows the settled letters below it to a process without the file of marks, such as rmqd on another machine.
    """
    position = queue.settled.reach(queue.min_offset)
    if position > max(queue.position, queue.min_offset):
        await update_consumer_offset(client.remoting, queue.address, queue.group, queue.queue, position)
