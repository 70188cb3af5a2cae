"""`AlreadyHandled` raised by a handler, and calls of `message.once`."""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest

from rmqd import AlreadyHandled
from rmqd.consumer.consumer_options import FailureOptions
from rmqd.handler_api.batch import Batch
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.wire.messages.message import once_in_group
from tests.consumer.blocks import block_of
from tests.consumer.pool import StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.handler_api.once.test_psycopg import message_of
from tests.waiting import eventually


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
async def test_already_handled_acknowledges_the_message(pool: StartPool, broker: ScriptedBroker, mode: str) -> None:
    """The message is counted as deduplicated, not as a failure."""

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset != 1:
            raise AlreadyHandled(batch[0])

    async with pool(handle, consume_mode=mode) as running:
        queue = running.queue(3)
        await eventually(done(queue), "all is acknowledged")
    snapshot = queue.stats.snapshot()
    assert (handled(queue), snapshot.deduplicated, snapshot.exceptions) == ({"acked": 3}, 2, {})
    assert not broker.sent_back


@pytest.mark.parametrize(("named", "result"), [(1, {"acked": 2}), (0, {"acked": 1, "dead_lettered": 1})])
async def test_the_last_undecided_message_of_a_batch_is_acknowledged_if_it_was_handled_before(
    pool: StartPool, broker: ScriptedBroker, named: int, result: dict[str, int]
) -> None:
    """For example after a retry in place, if the first call committed and then lost its connection."""
    batches: list[Batch] = []

    async def handle(batch: Batch) -> None:
        batches.append(batch)
        if len(batches) == 1:
            batch.ack(batch[0])
            raise ConnectionError
        raise AlreadyHandled(batches[0][named])

    failures = FailureOptions(1, 0.001, 0.001, frozenset({"ConnectionError"}), frozenset())
    async with pool(handle, consume_message_batch_max_size=2, failures=failures, max_reconsume_times=0) as running:
        queue = running.queue(2)
        await eventually(done(queue), "all is settled")
    assert (len(batches), handled(queue), queue.stats.snapshot().deduplicated) == (2, result, named)


@pytest.mark.parametrize("is_async", [False, True])
async def test_message_once_knows_its_group(pool: StartPool, is_async: bool) -> None:
    """Also in the threads of synchronous handlers. The error is about the connection, not about the group."""
    said: dict[int, str] = defaultdict(str)

    def ask(batch: Batch) -> None:
        try:
            batch[0].once(object())
        except TypeError as error:
            said[threading.get_ident()] = str(error)

    async def ask_async(batch: Batch) -> None:
        ask(batch)

    once_in_group.set(once_for_group("shop"))  # as PushConsumer does for its tasks
    async with pool(ask_async if is_async else ask, is_async=is_async) as running:
        queue = running.queue(1)
        await eventually(done(queue), "it is handled")
    assert list(said.values()) == [
        "message.once was given a builtins.object; expected a connection of psycopg, or a connection or session of "
        "SQLAlchemy"
    ]


def test_all_copies_of_a_message_have_one_id() -> None:
    """This includes copies in the retry topic of a message that was sent without a unique id."""
    [sent] = block_of([7]).messages
    [copy] = block_of([9], properties={"ORIGIN_MESSAGE_ID": "7F00000100002A9F00000000000000AA"}).messages
    assert sent.first_copy_id == sent.msg_id
    assert copy.first_copy_id == "7F00000100002A9F00000000000000AA" != copy.msg_id
    assert message_of("unique").first_copy_id == "unique"
