"""Which offset the broker ends up with, where commits, resets and hand-overs meet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.offsets.broker_store import REPEAT_SECONDS, RemoteBrokerOffsetStore
from rmqd.errors import BrokerError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(
    broker: ScriptedBroker, queue: MessageQueue, clock: ManualClock
) -> AsyncIterator[RemoteBrokerOffsetStore]:
    """The group owns the queue, and found it at offset 4."""
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
    await client.routes.lookup(TOPIC)
    broker.offsets[GROUP, queue] = 4
    store = RemoteBrokerOffsetStore(client, GROUP, clock)
    store.take_over(queue, await store.read(queue))
    yield store
    await client.remoting.close()


def hold_updates(broker: ScriptedBroker) -> asyncio.Event:
    """Answer commits only once the event is set."""
    go_on = asyncio.Event()

    async def update(command: RemotingCommand) -> Reply:
        await go_on.wait()
        return broker.update(command)

    broker.peer.on(UPDATE, update)
    return go_on


async def test_commits_that_were_decided_on_before_a_reset_do_not_come_after_it(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    """Neither one that is on its way, nor one that waits for its turn."""
    go_on = hold_updates(broker)
    under_way = asyncio.create_task(store.persist({queue: 7}))
    await broker.peer.received(UPDATE)
    waiting = asyncio.create_task(store.persist({queue: 8}))
    await asyncio.sleep(0)
    reset = asyncio.create_task(store.commit(queue, 2, downward=True))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(under_way, waiting, reset)
    assert broker.commits_of(queue) == [7, 2]
    assert store.committed[queue] == 2
    await store.commit(queue, 3)
    assert broker.offsets[GROUP, queue] == 3


async def test_reset_that_no_broker_took_is_what_the_queue_is_given_up_with(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    broker.peer.on(UPDATE, Reply(ResponseCode.SYSTEM_ERROR, "not now"))
    with contextlib.suppress(BrokerError):
        await store.commit(queue, 2, downward=True)
    broker.peer.on(UPDATE, broker.update)
    await store.commit_upward(queue, 2)
    assert broker.offsets[GROUP, queue] == 2


async def test_reset_cut_short_is_what_the_queue_is_given_up_with(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue's task is cancelled when it is to be given up, at whatever it does."""
    monkeypatch.setattr("rmqd.consumer.offsets.broker_store.OFFSET_TIMEOUT_SECONDS", 0.3)
    broker.peer.on(UPDATE, None)
    reset = asyncio.create_task(store.commit(queue, 2, downward=True))
    await broker.peer.received(UPDATE)
    reset.cancel()
    await asyncio.wait((reset,))
    broker.peer.on(UPDATE, broker.update)
    await store.commit_upward(queue, 2)
    assert broker.offsets[GROUP, queue] == 2


async def test_offset_that_was_set_back_on_the_broker_is_left_there_at_the_end(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    """It is an operator's reset: the next owner begins there."""
    await store.commit(queue, 7)
    broker.offsets[GROUP, queue] = 1
    await store.commit_upward(queue, 9)
    assert broker.offsets[GROUP, queue] == 1


async def test_offset_that_a_restarted_broker_has_lost_is_stored_again(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    """By the next round, though nothing was consumed since; not where the same broker has it all the time."""
    await store.persist({queue: 7})
    await store.persist({queue: 7})
    assert broker.commits_of(queue) == [7]
    broker.offsets[GROUP, queue] = 4
    broker.peer.cut()
    await eventually(lambda: store.may_be_lost(queue), "the connection is lost")
    await store.persist({queue: 7})
    assert broker.offsets[GROUP, queue] == 7
    await store.persist({queue: 7})
    assert broker.commits_of(queue) == [7, 7]


async def test_offset_that_was_found_at_the_start_is_stored_again_too(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    """It is where this ownership began."""
    broker.offsets[GROUP, queue] = 2
    broker.peer.cut()
    await eventually(lambda: store.may_be_lost(queue), "the connection is lost")
    await store.persist({queue: 4})
    assert broker.offsets[GROUP, queue] == 4


async def test_offset_that_a_restarted_broker_has_lost_is_what_the_queue_is_given_up_with(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    """Nobody has set it back."""
    await store.commit(queue, 7)
    broker.offsets[GROUP, queue] = 1
    broker.peer.cut()
    await eventually(lambda: store.may_be_lost(queue), "the connection is lost")
    await store.commit_upward(queue, 9)
    assert broker.offsets[GROUP, queue] == 9


async def test_nothing_lower_is_stored_on_a_restarted_broker(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    await store.commit(queue, 7)
    broker.peer.cut()
    await eventually(lambda: store.may_be_lost(queue), "the connection is lost")
    await store.persist({queue: 6})
    assert broker.commits_of(queue) == [7]


async def test_offset_of_a_group_that_was_deleted_is_stored_again_at_the_end(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    await store.commit(queue, 7)
    del broker.offsets[GROUP, queue]
    await store.commit_upward(queue, 7)
    assert broker.offsets[GROUP, queue] == 7


async def test_offset_that_does_not_change_is_stored_again_now_and_then(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore, clock: ManualClock
) -> None:
    """So that a broker that lost it has it again; it is not told as another commit."""
    await store.commit(queue, 7)
    committed_at = store.committed_at[queue]
    await store.persist({queue: 7})
    assert broker.commits_of(queue) == [7]
    clock.turn(REPEAT_SECONDS)
    del broker.offsets[GROUP, queue]
    await store.persist({queue: 7})
    assert broker.offsets[GROUP, queue] == 7
    await store.persist({queue: 7})
    assert broker.commits_of(queue) == [7, 7]
    assert store.committed_at[queue] == committed_at


async def test_offset_zero_is_stored_though_the_broker_says_so_already(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    """Brokers of 4.9 say 0 where nothing is stored."""
    store.take_over(queue, 0)
    await store.persist({queue: 0})
    await store.persist({queue: 0})
    assert broker.commits_of(queue) == [0]


async def test_unchanged_offsets_are_stored_one_after_the_other(
    broker: ScriptedBroker, store: RemoteBrokerOffsetStore, clock: ManualClock
) -> None:
    """The broker may have lost the group's table, and of two requests that make it anew it loses one."""
    queues = broker.create_topic(TOPIC, 3)
    at_once, most = 0, 0

    async def update(command: RemotingCommand) -> Reply:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return broker.update(command)

    await store.persist(dict.fromkeys(queues, 7))
    broker.peer.on(UPDATE, update)
    await store.persist(dict.fromkeys(queues, 8))
    assert most > 1
    most = 0
    clock.turn(REPEAT_SECONDS)
    await store.persist(dict.fromkeys(queues, 8))
    assert [broker.commits_of(queue) for queue in queues] == [[7, 8, 8]] * 3
    assert most == 1


async def test_commit_of_a_former_ownership_is_dropped(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    go_on = hold_updates(broker)
    under_way = asyncio.create_task(store.persist({queue: 7}))
    await broker.peer.received(UPDATE)
    waiting = asyncio.create_task(store.persist({queue: 8}))
    await asyncio.sleep(0)
    store.forget(queue)
    go_on.set()
    await asyncio.gather(under_way, waiting)
    assert broker.commits_of(queue) == [7]
    assert queue not in store.committed


async def test_first_commits_of_a_topic_do_not_meet_at_the_broker(broker: ScriptedBroker, clock: ManualClock) -> None:
    """It makes a table for a group's topic with the first one; of two that come at once, one table is lost."""
    queues = broker.create_topic(TOPIC, 8)
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
    await client.routes.lookup(TOPIC)
    table: list[dict[str, str]] = []

    async def update(command: RemotingCommand) -> Reply:
        own = table or [{}]
        await asyncio.sleep(0.01)
        own[0][command.ext_fields["queueId"]] = command.ext_fields["commitOffset"]
        table[:] = own
        return broker.update(command)

    broker.peer.on(UPDATE, update)
    store = RemoteBrokerOffsetStore(client, GROUP, clock)
    assert await store.persist(dict.fromkeys(queues, 3))
    assert table == [{str(queue.queue_id): "3" for queue in queues}]
    await client.remoting.close()


def hold_first_update(broker: ScriptedBroker) -> asyncio.Event:
    """Take up the first commit only once the event is set, and the others at once."""
    go_on, seen = asyncio.Event(), []

    async def update(command: RemotingCommand) -> Reply:
        seen.append(command)
        if len(seen) == 1:
            await go_on.wait()
        return broker.update(command)

    broker.peer.on(UPDATE, update)
    return go_on


async def test_a_commit_that_is_taken_up_after_its_deadline_is_not_the_last_word(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker stood still, and was given a newer one meanwhile: the next round has that stored again."""
    monkeypatch.setattr("rmqd.consumer.offsets.broker_store.OFFSET_TIMEOUT_SECONDS", 0.1)
    go_on = hold_first_update(broker)
    assert not await store.persist({queue: 7})
    monkeypatch.undo()
    assert await store.persist({queue: 8})
    go_on.set()
    await eventually(lambda: broker.commits_of(queue) == [8, 7], "the older one comes over the newer one")
    await store.persist({queue: 8})
    assert broker.offsets[GROUP, queue] == 8
    await store.persist({queue: 8})
    assert broker.commits_of(queue) == [8, 7, 8]


async def test_a_commit_that_came_late_is_not_taken_for_an_operators_reset(
    broker: ScriptedBroker,
    queue: MessageQueue,
    store: RemoteBrokerOffsetStore,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the queue is given up, that is waited for, and mended."""
    monkeypatch.setattr("rmqd.consumer.offsets.broker_store.OFFSET_TIMEOUT_SECONDS", 0.1)
    go_on = hold_first_update(broker)
    assert not await store.persist({queue: 7})
    monkeypatch.undo()
    until = clock.monotonic() + 20
    await store.commit_upward(queue, 9)
    settled = asyncio.create_task(store.settled(queue, 9, until))
    go_on.set()
    assert await settled
    assert broker.offsets[GROUP, queue] == 7
    await store.commit_upward(queue, 9)
    assert broker.offsets[GROUP, queue] == 9
    assert not await store.settled(queue, 9, until)


async def test_who_waits_for_a_commit_may_be_cancelled_and_the_commit_is_not(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    """It is on its way: the next one is not to overtake it."""
    go_on = hold_first_update(broker)
    first = asyncio.create_task(store.commit(queue, 7))
    await broker.peer.received(UPDATE)
    first.cancel()
    await asyncio.wait((first,))
    second = asyncio.create_task(store.commit(queue, 8))
    await asyncio.sleep(0.05)
    go_on.set()
    await second
    assert broker.commits_of(queue) == [7, 8]


async def test_a_commit_that_a_waiting_reset_keeps_out_is_not_believed(
    broker: ScriptedBroker, queue: MessageQueue, store: RemoteBrokerOffsetStore
) -> None:
    """The broker answers it with success, and stores nothing."""
    broker.peer.on(UPDATE, Reply(remark="Offset has been previously reset"))
    await store.persist({queue: 7})
    assert store.committed[queue] == 4
