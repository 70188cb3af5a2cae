"""How a broker moves a group.

RocketMQ 5 keeps a reset for the group's next pull of the queue (`useServerSideResetOffset`): it can be any offset of
any queue. Brokers of 4.x, and others where that is off, push it to the members: to a time alone, in all queues of the
topic that the broker has, and only where each of them has an offset stored. Where nobody is there that could hear of
it, an offset is simply stored.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from rmqd.client.api.admin import RESET_TO_END, broker_config, reset_offset
from rmqd.client.api.offset import update_consumer_offset
from rmqd.errors import OffsetResetError

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient
    from rmqd.client.resets.goal import Goal
    from rmqd.wire.message_queue import MessageQueue

_SETTING: Final = "useServerSideResetOffset"


class WayOf(Enum):
    """How one broker tells members of a reset."""

    PULLED = "with their next pull"
    PUSHED = "by a push"


async def way_of(remoting: RemotingClient, address: str) -> WayOf:
    """Ask a broker for its settings. Raises RmqdError."""
    config = await broker_config(remoting, address)
    return WayOf.PULLED if config.get(_SETTING) == "true" else WayOf.PUSHED


async def reset_one(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, target: int | None
) -> dict[MessageQueue, int]:
    """Have a broker keep a reset of one queue, to its end (None) as it is then: nobody is further, and so sent back.

    Returns where it was moved. Raises RmqdError.
    """
    to_end = RESET_TO_END if target is None else 0
    return await reset_offset(remoting, address, group, queue.topic, to_end, queue_id=queue.queue_id, offset=target)


async def store_one(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, target: int
) -> dict[MessageQueue, int]:
    """Store an offset that nobody is told of. Returns it. Raises RmqdError."""
    if not await update_consumer_offset(remoting, address, group, queue, target):
        raise OffsetResetError("another reset waits there for the group's next pull")
    return {queue: target}


async def push_all(
    remoting: RemotingClient, address: str, group: str, topic: str, goal: Goal, *, is_whole: bool
) -> dict[MessageQueue, int]:
    """Have a broker push a reset to the members, of all its queues of the topic; `is_whole`: all of them are meant.

    Returns where they were moved. Raises RmqdError.
    """
    timestamp_ms = goal.timestamp_ms
    if timestamp_ms is None:
        raise OffsetResetError(
            f"this broker pushes resets to members (RocketMQ 4, or {_SETTING}=false), and only by time: "
            "use --to first, last or a time, or stop the members"
        )
    if not is_whole:
        raise OffsetResetError(
            f"this broker pushes resets to members (RocketMQ 4, or {_SETTING}=false), of all queues at once: "
            "leave out --broker and --queue, or stop the members"
        )
    return await reset_offset(remoting, address, group, topic, timestamp_ms)
