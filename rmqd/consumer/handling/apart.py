"""Calls of a handler outside of a group's slots, which commit nothing and send nothing back.

Operators ask for them: of a member (`consumer/admin/direct_consumption.py`), and by `rmqd try`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.services import ConsumeMessageService
from rmqd.handler_api import Batch, ManualBatch, OrderlyBatch
from rmqd.wire.messages.message import Message


class _Unlocked:
    """The lease that an orderly handler sees in such a call, which holds no lock of the queue."""

    valid = True


def batch_apart(options: ConsumerOptions, messages: list[Message]) -> Batch:
    """The batch that a handler of the group gets with these messages, which are of one queue."""
    queue = messages[0].message_queue
    if options.consume_mode != "orderly":
        return Batch(messages, queue)
    kind = OrderlyBatch if options.auto_commit else ManualBatch
    return kind(_Unlocked(), messages, queue)


async def called_apart(
    service: ConsumeMessageService, batch: Batch, ended: Callable[[], None] = lambda: None
) -> BaseException | None:
    """Call the handler, and return what it raised; None if it returned. `ended` is called when the call has ended."""
    error: BaseException | None = None
    try:
        await service.call_apart(batch, ended)
    except BaseException as raised:  # noqa: BLE001  whatever a handler raises is its result
        error = raised
    batch.end()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # a handler may have cancelled this task, and returned
    return error
