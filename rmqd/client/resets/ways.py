"""How a broker applies a reset.

RocketMQ 5 stores a reset for the group's next pull of the queue (`useServerSideResetOffset`): to any offset of any
queue. Brokers of 4.x, and brokers with that setting off, push it to the members: only to a time, in all queues of the
topic on that broker, and only if all of these queues have a stored offset. If the group has no members to receive the
reset, an offset is simply stored.
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
    """How one broker notifies members of a reset."""

    PULLED = "with their next pull"
    PUSHED = "by a push"


async def way_of(remoting: RemotingClient, address: str) -> WayOf:
    """Ask a broker for its settings. Raises RmqdError."""
    config = await broker_config(remoting, address)
    return WayOf.PULLED if config.get(_SETTING) == "true" else WayOf.PUSHED


async def reset_one(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, target: int | None
) -> dict[MessageQueue, int]:
    """Ask a broker to store a reset of one queue; None: to the queue's current end, so that no member moves back.

    Returns the new offset. Raises RmqdError.
    """
    to_end = RESET_TO_END if target is None else 0
    return await reset_offset(remoting, address, group, queue.topic, to_end, queue_id=queue.queue_id, offset=target)


async def store_one(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, target: int
) -> dict[MessageQueue, int]:
    """Store an offset without notifying members. Returns it. Raises RmqdError."""
    if not await update_consumer_offset(remoting, address, group, queue, target):
        raise OffsetResetError("another reset waits for the group's next pull")
    return {queue: target}


async def push_all(
    remoting: RemotingClient, address: str, group: str, topic: str, goal: Goal, *, is_whole: bool
) -> dict[MessageQueue, int]:
    """Ask a broker to push a reset of all its queues of the topic to the members. `is_whole`: all of them are selected.

    Returns the new offsets. Raises RmqdError.
    """
    timestamp_ms = goal.timestamp_ms
    if timestamp_ms is None:
        raise OffsetResetError(
            f"this broker pushes resets to members (RocketMQ 4, or {_SETTING}=false), which works only by time: "
            "use --to first, last or a time, or stop the members"
        )
    if not is_whole:
        raise OffsetResetError(
            f"this broker pushes resets to members (RocketMQ 4, or {_SETTING}=false), always for all queues: "
            "omit --broker and --queue, or stop the members"
        )
    return await reset_offset(remoting, address, group, topic, timestamp_ms)
