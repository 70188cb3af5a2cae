"""How far the queues' ends are, for queues that no reply has told about for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from rmqd.client.api.offset import get_max_offset
from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.pull.loop import PullLoop
from rmqd.errors import RmqdError

log = structlog.get_logger(__name__)

STALE_SECONDS = 5.0
OVERDUE_SECONDS = 21.0  # a pull is held for 15 s, and then answered within the broker's 5 s round


async def refresh_max_offsets(client: ClientInstance, queues: Iterable[AssignedQueue], clock: Clock) -> None:
    """Ask for the ends of queues that no reply tells of: those held back, and those whose first pull is still held."""
    now = clock.monotonic()
    loops = [(assigned, assigned.loop) for assigned in queues if assigned.loop is not None]
    await asyncio.gather(
        *(
            _refresh(client, assigned, loop, clock)
            for assigned, loop in loops
            if loop.max_offset is None or _is_stale(loop, now)
        )
    )


def _is_stale(loop: PullLoop, now: float) -> bool:
    """Whether the queue grows unseen. A held pull is answered as soon as it grows, so what that knows is fresh."""
    is_held_back = loop.held_by is not None or loop.stuck is not None
    # an answer that is overdue, and a pull that fails, say nothing either
    return now - loop.answered_at >= (STALE_SECONDS if is_held_back or loop.failure else OVERDUE_SECONDS)


async def _refresh(client: ClientInstance, assigned: AssignedQueue, loop: PullLoop, clock: Clock) -> None:
    address = client.routes.address(client.routes.endpoint(assigned.message_queue))
    if address is None:
        return
    try:
        loop.max_offset = await get_max_offset(client.remoting, address, assigned.message_queue)
        loop.measured_at = clock.monotonic()
    except RmqdError as error:
        log.debug("lag.unknown", queue=str(assigned.message_queue), error=str(error))
