"""How far the queues' ends are, for queues that no reply has told about for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from rmqd.client.api.offset import get_max_offset
from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.consumer.assigned_queue import AssignedQueue
from rmqd.consumer.pull_loop import PullLoop
from rmqd.errors import RmqdError

log = structlog.get_logger(__name__)

STALE_SECONDS = 5.0


async def refresh_max_offsets(client: ClientInstance, queues: Iterable[AssignedQueue], clock: Clock) -> None:
    """Ask for the ends of queues that are held back: their lag grows although nothing is pulled."""
    now = clock.monotonic()
    await asyncio.gather(
        *(
            _refresh(client, assigned, assigned.loop)
            for assigned in queues
            if assigned.loop is not None
            and (assigned.loop.held_by is not None or assigned.loop.stuck is not None)
            and now - assigned.loop.answered_at >= STALE_SECONDS
        )
    )


async def _refresh(client: ClientInstance, assigned: AssignedQueue, loop: PullLoop) -> None:
    address = client.routes.address(assigned.message_queue.broker_name)
    if address is None:
        return
    try:
        loop.max_offset = await get_max_offset(client.remoting, address, assigned.message_queue)
    except RmqdError as error:
        log.debug("lag.unknown", queue=str(assigned.message_queue), error=str(error))
