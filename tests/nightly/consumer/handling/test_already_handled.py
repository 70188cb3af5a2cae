"""`AlreadyHandled` in a group, and `message.once` outside a group."""

from __future__ import annotations

import contextvars

import pytest

from rmqd import AlreadyHandled
from rmqd.handler_api.batch import Batch
from tests.consumer.pool import StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.handler_api.once.test_psycopg import message_of
from tests.waiting import eventually


async def test_already_handled_for_one_message_retries_the_whole_batch(pool: StartPool, broker: ScriptedBroker) -> None:
    """Nothing says which of the others were handled, so all are redelivered. Existing records stay valid."""

    async def handle(batch: Batch) -> None:
        raise AlreadyHandled(batch[1])

    async with pool(handle, consume_message_batch_max_size=3) as running:
        queue = running.queue(3)
        await eventually(done(queue), "the batch is settled")
    assert handled(queue) == {"retried": 3}
    assert len(broker.sent_back) == 3


def test_once_outside_a_handler_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no group is handling this message"):
        contextvars.Context().run(message_of("a").once, object())
