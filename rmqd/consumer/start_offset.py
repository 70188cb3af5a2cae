"""Where a queue's consumption begins: the one place that decides it."""

from __future__ import annotations

import structlog

from rmqd.client.api.offset import get_max_offset, get_min_offset, search_offset
from rmqd.client.instance import ClientInstance
from rmqd.consumer.options import ConsumerOptions
from rmqd.errors import RouteNotFoundError
from rmqd.wire.message import MessageQueue
from rmqd.wire.topics import is_retry_topic

log = structlog.get_logger(__name__)


async def compute_start_offset(
    client: ClientInstance, options: ConsumerOptions, queue: MessageQueue, stored: int | None
) -> int:
    """The first offset to pull (`RebalancePushImpl.computePullFromWhere`). Raises RmqdError.

    | consume_from_where | topic                          | the group's retry topic |
    |--------------------|--------------------------------|-------------------------|
    | last_offset        | the queue's end                | its first kept message  |
    | first_offset       | its first kept message         | its first kept message  |
    | timestamp          | first message stored then      | the queue's end         |

    Java says 0 for "first", and lets the broker correct it; with `on_offset_illegal: stop` nobody would.
    """
    if stored is not None:
        log.info("queue.starts", queue=str(queue), offset=stored, why="committed")
        return stored
    where, retry = options.consume_from_where, is_retry_topic(queue.topic)
    address = client.routes.address(queue.broker_name)
    if address is None:
        raise RouteNotFoundError(queue.topic, f"no address is known for broker {queue.broker_name}")
    if where == "first_offset" or (where == "last_offset" and retry):
        offset = max(0, await get_min_offset(client.remoting, address, queue))
    elif where == "last_offset" or retry:
        offset = await get_max_offset(client.remoting, address, queue)
    else:
        offset = await search_offset(client.remoting, address, queue, options.consume_timestamp_ms or 0)
    log.info("queue.starts", queue=str(queue), offset=offset, why=where)
    return offset
