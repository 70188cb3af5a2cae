"""Handler calls outside a group's slots. They commit nothing and send nothing back.

Operators request them, from a member (`consumer/admin/direct_consumption.py`) or with `rmqd try`.
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
    """The lease that an orderly handler sees in such a call. There is no lock on the queue."""

    valid = True


def batch_apart(options: ConsumerOptions, messages: list[Message]) -> Batch:
    """Return the batch that a handler of the group gets for these messages of one queue."""
    queue = messages[0].message_queue
    if options.consume_mode != "orderly":
        return Batch(messages, queue)
    kind = OrderlyBatch if options.auto_commit else ManualBatch
    return kind(_Unlocked(), messages, queue)


async def called_apart(
    service: ConsumeMessageService, batch: Batch, ended: Callable[[], None] = lambda: None
) -> BaseException | None:
    """Call the handler. Returns its exception, or None. `ended` is called when the call has ended."""
    error: BaseException | None = None
    try:
        await service.call_apart(batch, ended)
    except BaseException as raised:  # noqa: BLE001  every exception of a handler is its result
        error = raised
    batch.end()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # receives the cancellation if the handler cancelled this task and returned
    return error
