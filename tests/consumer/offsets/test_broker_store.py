"""Which offset the broker ends up with, where commits, resets and hand-overs meet."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from rmqd.client.instance import MAX_OFFSET_REQUESTS, ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.offsets.broker_store import OFFSET_TIMEOUT_SECONDS, REPEAT_SECONDS, RemoteBrokerOffsetStore
from rmqd.consumer.offsets.persistence import OFFSET_WATCH_SECONDS
from rmqd.errors.broker_errors import BrokerError
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.offsets.owner import UPDATE, Overlaps, Owner
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually


async def test_commits_that_were_decided_on_before_a_reset_do_not_come_after_it(owner: Owner) -> None:
    """Neither one that is on its way, nor one that waits for its turn."""
    go_on = owner.hold_next_commit()
    under_way = await owner.begin(owner.persist(7))
    waiting = asyncio.create_task(owner.persist(8))
    await asyncio.sleep(0)
    reset = asyncio.create_task(owner.store.commit(owner.queue, 2, downward=True))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(under_way, waiting, reset)
    assert owner.commits == [7, 2]
    assert owner.store.committed[owner.queue] == 2
    await owner.store.commit(owner.queue, 3)
    assert owner.stored == 3


async def test_reset_that_no_broker_took_is_what_the_queue_is_given_up_with(owner: Owner) -> None:
    owner.broker.peer.on(UPDATE, Reply(ResponseCode.SYSTEM_ERROR, "not now"))
    with contextlib.suppress(BrokerError):
        await owner.store.commit(owner.queue, 2, downward=True)
    owner.broker.peer.on(UPDATE, owner.broker.update)
    await owner.store.commit_upward(owner.queue, 2)
    assert owner.stored == 2


async def test_reset_cut_short_is_what_the_queue_is_given_up_with(owner: Owner) -> None:
    """The queue's task is cancelled when it is to be given up, at whatever it does."""
    owner.broker.peer.on(UPDATE, None)
    reset = await owner.begin(owner.store.commit(owner.queue, 2, downward=True))
    reset.cancel()
    await asyncio.wait((reset,))
    owner.broker.peer.on(UPDATE, owner.broker.update)
    giving_up = asyncio.create_task(owner.store.commit_upward(owner.queue, 2))
    await owner.let_deadline_pass()
    await giving_up
    assert owner.stored == 2


async def test_offset_that_was_set_back_on_the_broker_is_left_there_at_the_end(owner: Owner) -> None:
    """It is an operator's reset: the next owner begins there."""
    await owner.store.commit(owner.queue, 7)
    owner.set_back(1)
    await owner.store.commit_upward(owner.queue, 9)
    assert owner.stored == 1


async def test_offset_that_a_restarted_broker_has_lost_is_stored_again(owner: Owner) -> None:
    """By the next round, though nothing was consumed since; not where the same broker has it all the time."""
    await owner.persist(7)
    await owner.persist(7)
    assert owner.commits == [7]
    owner.set_back(4)
    await owner.lose_connection()
    await owner.persist(7)
    assert owner.stored == 7
    await owner.persist(7)
    assert owner.commits == [7, 7]


async def test_offset_that_was_found_at_the_start_is_stored_again_too(owner: Owner) -> None:
    """It is where this ownership began."""
    owner.set_back(2)
    await owner.lose_connection()
    await owner.persist(4)
    assert owner.stored == 4


async def test_offset_that_a_restarted_broker_has_lost_is_what_the_queue_is_given_up_with(owner: Owner) -> None:
    """Nobody has set it back."""
    await owner.store.commit(owner.queue, 7)
    owner.set_back(1)
    await owner.lose_connection()
    await owner.store.commit_upward(owner.queue, 9)
    assert owner.stored == 9


async def test_offset_that_a_slave_took_while_its_master_came_back_is_stored_there_too(owner: Owner) -> None:
    """Seed 9740181: the answer was the slave's, and routes named the master when it came."""
    async with Peer() as slave:
        taken = asyncio.Event()

        async def take_later(command: RemotingCommand) -> Reply:
            await taken.wait()
            return Reply()

        owner.broker.serve(slave, 1, with_master=False)
        slave.on(UPDATE, take_later)
        await owner.client.routes.refresh(TOPIC)
        commit = asyncio.create_task(owner.persist(7))
        await slave.received(UPDATE)
        owner.broker.serve(slave, 1, with_master=True)
        slave.on(UPDATE, take_later)
        await owner.client.routes.refresh(TOPIC)
        taken.set()
        await commit
        assert owner.stored == 4
        await owner.persist(7)
    assert owner.stored == 7


async def test_nothing_lower_is_stored_on_a_restarted_broker(owner: Owner) -> None:
    await owner.store.commit(owner.queue, 7)
    await owner.lose_connection()
    await owner.persist(6)
    assert owner.commits == [7]


async def another_owner_begins(owner: Owner, offset: int) -> Overlaps:
    """Another member, which takes this one for dead, has committed beyond our 7. Returns what our watcher is told."""
    overlaps = Overlaps()
    owner.store.begin_ownership(owner.queue, await owner.store.read(owner.queue), overlaps)
    await owner.clock.advance(OFFSET_WATCH_SECONDS)
    await owner.persist(7)
    owner.set_back(offset)
    return overlaps


async def test_a_member_that_was_cut_off_does_not_commit_over_the_next_owner(owner: Owner) -> None:
    overlaps = await another_owner_begins(owner, 9)
    await owner.lose_connection()
    await owner.persist(8)
    assert owner.stored == 9
    assert overlaps.messages == 2
    await owner.persist(8)
    assert owner.stored == 9
    await owner.persist(10)
    assert owner.stored == 10


async def test_a_member_that_was_suspended_does_not_commit_over_the_next_owner(owner: Owner) -> None:
    overlaps = await another_owner_begins(owner, 9)
    owner.store.recheck_stored_offsets()
    await owner.persist(8)
    assert owner.stored == 9
    assert overlaps.messages == 2


async def test_the_look_before_a_commit_ends_with_the_first_one_on_a_connection(owner: Owner) -> None:
    await another_owner_begins(owner, 7)
    for doubt in (owner.lose_connection, owner.doubt):
        await doubt()
        await owner.persist(8)
        reads = owner.reads
        assert owner.stored == 8
        await owner.persist(9)
        assert (owner.stored, owner.reads) == (9, reads)
        owner.set_back(7)
        await owner.store.commit(owner.queue, 7, downward=True)


async def test_offset_of_a_group_that_was_deleted_is_stored_again_at_the_end(owner: Owner) -> None:
    await owner.store.commit(owner.queue, 7)
    del owner.broker.offsets[GROUP, owner.queue]
    await owner.store.commit_upward(owner.queue, 7)
    assert owner.stored == 7


async def test_offset_that_does_not_change_is_stored_again_now_and_then(owner: Owner) -> None:
    """So that a broker that lost it has it again; it is not told as another commit."""
    await owner.store.commit(owner.queue, 7)
    committed_at = owner.store.committed_at[owner.queue]
    await owner.persist(7)
    assert (owner.commits, owner.store.is_check_due()) == ([7], False)
    owner.clock.turn(REPEAT_SECONDS)
    assert owner.store.is_check_due()
    del owner.broker.offsets[GROUP, owner.queue]
    await owner.persist(7)
    assert (owner.stored, owner.store.is_check_due()) == (7, False)
    await owner.persist(7)
    assert owner.commits == [7, 7]
    assert owner.store.committed_at[owner.queue] == committed_at


async def test_offset_zero_is_stored_though_the_broker_says_so_already(owner: Owner) -> None:
    """Brokers of 4.9 say 0 where nothing is stored."""
    owner.store.begin_ownership(owner.queue, 0)
    await owner.persist(0)
    await owner.persist(0)
    assert owner.commits == [0]


async def test_one_read_shows_that_a_broker_still_has_all_unchanged_offsets_of_a_topic(
    broker: ScriptedBroker, owner: Owner, flowing: ManualClock
) -> None:
    """If the broker lost them, the first commit makes the table again alone: of two at once, the broker loses one."""
    queues = broker.create_topic(TOPIC, 3)
    at_once, most = 0, 0

    async def update(command: RemotingCommand) -> Reply:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once if len(broker.offsets) < len(queues) else 0)
        await flowing.sleep(0.01)
        at_once -= 1
        return broker.update(command)

    await owner.store.persist(dict.fromkeys(queues, 7))
    reads = owner.reads
    flowing.turn(REPEAT_SECONDS)
    await owner.store.persist(dict.fromkeys(queues, 7))
    await owner.store.persist(dict.fromkeys(queues, 7))
    assert (owner.reads, [broker.commits_of(queue) for queue in queues]) == (reads + 1, [[7]] * 3)
    flowing.turn(REPEAT_SECONDS)
    broker.offsets.clear()
    broker.peer.on(UPDATE, update)
    await owner.store.persist(dict.fromkeys(queues, 7))
    assert [broker.commits_of(queue) for queue in queues] == [[7, 7]] * 3
    assert broker.offsets == {(GROUP, queue): 7 for queue in queues}


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_check_of_unchanged_offsets_ends_with_the_ownership(owner: Owner, *, is_alone: bool) -> None:
    """The queue is released right after the round has begun."""
    other = owner.broker.create_topic(TOPIC, 2)[1]
    await owner.persist(7)
    owner.clock.turn(REPEAT_SECONDS)
    del owner.broker.offsets[GROUP, owner.queue]
    offsets = {owner.queue: 7} if is_alone else {owner.queue: 7, other: 3}
    a_round = asyncio.create_task(owner.store.persist(offsets))
    await asyncio.sleep(0)
    owner.store.forget(owner.queue)
    assert await a_round
    assert owner.commits == [7]


async def test_a_check_of_unchanged_offsets_does_not_undo_a_reset_that_follows(owner: Owner) -> None:
    """The round also commits another queue. The broker has the operator's reset, and refuses this member's commit."""
    other = owner.broker.create_topic(TOPIC, 2)[1]
    await owner.persist(7)
    owner.clock.turn(REPEAT_SECONDS)
    owner.set_back(2)

    def refuse_first(command: RemotingCommand) -> Reply:
        owner.broker.peer.on(UPDATE, owner.broker.update)
        return Reply(ResponseCode.SYSTEM_ERROR, "not now")

    owner.broker.peer.on(UPDATE, refuse_first)
    a_round = asyncio.create_task(owner.store.persist({owner.queue: 7, other: 3}))
    reset = asyncio.create_task(owner.store.commit(owner.queue, 2, downward=True))
    await asyncio.gather(a_round, reset, return_exceptions=True)
    assert isinstance(reset.exception(), BrokerError)
    assert owner.commits == [7]
    assert owner.stored == 2


async def test_commit_of_a_former_ownership_is_dropped(owner: Owner) -> None:
    go_on = owner.hold_next_commit()
    under_way = await owner.begin(owner.persist(7))
    waiting = asyncio.create_task(owner.persist(8))
    await asyncio.sleep(0)
    owner.store.forget(owner.queue)
    go_on.set()
    await asyncio.gather(under_way, waiting)
    assert owner.commits == [7]
    assert owner.queue not in owner.store.committed


async def test_first_commits_of_a_topic_do_not_meet_at_the_broker(
    broker: ScriptedBroker, client: ClientInstance, flowing: ManualClock
) -> None:
    """It makes a table for a group's topic with the first one; of two that come at once, one table is lost."""
    queues = broker.create_topic(TOPIC, 8)
    await client.routes.lookup(TOPIC)
    table: list[dict[str, str]] = []

    async def update(command: RemotingCommand) -> Reply:
        own = table or [{}]
        await flowing.sleep(0.01)
        own[0][command.ext_fields["queueId"]] = command.ext_fields["commitOffset"]
        table[:] = own
        return broker.update(command)

    broker.peer.on(UPDATE, update)
    store = RemoteBrokerOffsetStore(client, GROUP, flowing)
    assert await store.persist(dict.fromkeys(queues, 3))
    assert table == [{str(queue.queue_id): "3" for queue in queues}]


async def test_a_commit_that_is_taken_up_after_its_deadline_is_not_the_last_word(owner: Owner) -> None:
    """Its broker stood still, and was given a newer one meanwhile: the next round has that stored again."""
    go_on = owner.hold_next_commit()
    late = await owner.begin(owner.persist(7))
    await owner.let_deadline_pass()
    assert not await late
    assert await owner.persist(8)
    go_on.set()
    await eventually(lambda: owner.commits == [8, 7], "the older one comes over the newer one")
    await owner.persist(8)
    assert owner.stored == 8
    await owner.persist(8)
    assert owner.commits == [8, 7, 8]


async def test_a_commit_that_came_late_is_not_taken_for_an_operators_reset(owner: Owner) -> None:
    """When the queue is given up, that is waited for, and mended."""
    go_on = owner.hold_next_commit()
    late = await owner.begin(owner.persist(7))
    await owner.let_deadline_pass()
    assert not await late
    until = owner.clock.monotonic() + 20
    await owner.store.commit_upward(owner.queue, 9)
    settled = asyncio.create_task(owner.store.wait_for_commits(owner.queue, 9, until))
    go_on.set()
    assert await settled
    assert owner.stored == 7
    await owner.store.commit_upward(owner.queue, 9)
    assert owner.stored == 9
    assert not await owner.store.wait_for_commits(owner.queue, 9, until)


async def test_who_waits_for_a_commit_may_be_cancelled_and_the_commit_is_not(owner: Owner) -> None:
    """It is on its way: the next one is not to overtake it."""
    go_on = owner.hold_next_commit()
    first = await owner.begin(owner.store.commit(owner.queue, 7))
    first.cancel()
    await asyncio.wait((first,))
    second = asyncio.create_task(owner.store.commit(owner.queue, 8))
    await owner.clock.advance(1.0)
    go_on.set()
    await second
    assert owner.commits == [7, 8]


async def test_a_commit_that_a_waiting_reset_keeps_out_is_not_believed(owner: Owner) -> None:
    """The broker answers it with success, and stores nothing."""
    owner.broker.peer.on(UPDATE, Reply(remark="Offset has been previously reset"))
    await owner.persist(7)
    assert owner.store.committed[owner.queue] == 4


@pytest.mark.parametrize("code", [RequestCode.QUERY_CONSUMER_OFFSET, UPDATE])
async def test_few_requests_of_a_wide_group_are_under_way(owner: Owner, code: RequestCode) -> None:
    """A busy machine would read most answers too late. The deadline of a request begins when it is sent."""
    store, peer, go_on = owner.store, owner.broker.peer, asyncio.Semaphore(0)
    await owner.persist(7)
    peer.requests.clear()

    async def slow(command: RemotingCommand) -> Reply:
        await go_on.acquire()
        return owner.broker.update(command) if code is UPDATE else owner.broker.query(command)

    peer.on(code, slow)
    queues = owner.broker.create_topic(TOPIC, 1 + 3 * MAX_OFFSET_REQUESTS)[1:]
    work = asyncio.gather(*(store.commit(one, 1) if code is UPDATE else store.read(one) for one in queues))
    for sent in range(MAX_OFFSET_REQUESTS, len(queues) + 1, MAX_OFFSET_REQUESTS):
        await peer.received(code, sent)
        assert len(peer.got(code)) == sent
        owner.clock.turn(OFFSET_TIMEOUT_SECONDS - 1)
        for _ in range(MAX_OFFSET_REQUESTS):
            go_on.release()
    await work


async def test_failed_commits_of_a_round_are_one_line_for_a_broker(owner: Owner) -> None:
    owner.broker.peer.on(UPDATE, Reply(ResponseCode.SYSTEM_ERROR, "not now"))
    queues = owner.broker.create_topic(TOPIC, 5)
    with capture_logs() as logs:
        assert not await owner.store.persist(dict.fromkeys(queues, 7))
    assert [(line["event"], line["broker"], line["queues"]) for line in logs] == [("offset.commit_failed", "a", 5)]


async def test_a_round_does_nothing_for_queues_without_news(owner: Owner) -> None:
    """No task is made, nobody is waited for: a group has thousands of them."""
    await owner.persist(7)
    a_round = owner.store.persist({owner.queue: 7})
    with pytest.raises(StopIteration):
        a_round.send(None)
