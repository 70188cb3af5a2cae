"""The offset that the broker finally stores after concurrent commits, resets and hand-overs."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest
from structlog.testing import capture_logs

from rmqd.client.instance import MAX_OFFSET_REQUESTS, ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.offsets.broker_store import OFFSET_CHECK_SECONDS, OFFSET_TIMEOUT_SECONDS, RemoteBrokerOffsetStore
from rmqd.consumer.offsets.persistence import OFFSET_WATCH_SECONDS
from rmqd.errors.broker_errors import BrokerError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.offsets.owner import UPDATE, Overlaps, Owner
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually


async def test_a_commit_from_before_a_reset_is_not_sent_after_it(owner: Owner) -> None:
    """Neither a commit in flight nor a waiting one replaces the reset."""
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


async def test_a_refused_reset_is_committed_at_the_release(owner: Owner) -> None:
    owner.broker.peer.on(UPDATE, Reply(ResponseCode.SYSTEM_ERROR, "not now"))
    with contextlib.suppress(BrokerError):
        await owner.store.commit(owner.queue, 2, downward=True)
    owner.broker.peer.on(UPDATE, owner.broker.update)
    await owner.store.commit_upward(owner.queue, 2)
    assert owner.stored == 2


async def test_a_cancelled_reset_is_committed_at_the_release(owner: Owner) -> None:
    """A release may cancel the queue's task at any point."""
    owner.broker.peer.on(UPDATE, None)
    reset = await owner.begin(owner.store.commit(owner.queue, 2, downward=True))
    reset.cancel()
    await asyncio.wait((reset,))
    owner.broker.peer.on(UPDATE, owner.broker.update)
    giving_up = asyncio.create_task(owner.store.commit_upward(owner.queue, 2))
    await owner.let_deadline_pass()
    await giving_up
    assert owner.stored == 2


async def test_an_offset_lowered_at_the_broker_stays_at_the_release(owner: Owner) -> None:
    """The lower offset is an operator's reset, and the next owner starts there."""
    await owner.store.commit(owner.queue, 7)
    owner.set_back(1)
    await owner.store.commit_upward(owner.queue, 9)
    assert owner.stored == 1


async def test_an_offset_lost_by_a_restarted_broker_is_committed_again(owner: Owner) -> None:
    """The next round commits it, although nothing was consumed since. Without a loss it is not repeated."""
    await owner.persist(7)
    await owner.persist(7)
    assert owner.commits == [7]
    owner.set_back(4)
    await owner.lose_connection()
    await owner.persist(7)
    assert owner.stored == 7
    await owner.persist(7)
    assert owner.commits == [7, 7]


async def test_the_offset_at_the_acquisition_is_committed_again_after_a_loss(owner: Owner) -> None:
    owner.set_back(2)
    await owner.lose_connection()
    await owner.persist(4)
    assert owner.stored == 4


async def test_a_release_replaces_an_offset_lost_by_a_restarted_broker(owner: Owner) -> None:
    """After a lost connection, a lower offset does not count as an operator's reset."""
    await owner.store.commit(owner.queue, 7)
    owner.set_back(1)
    await owner.lose_connection()
    await owner.store.commit_upward(owner.queue, 9)
    assert owner.stored == 9


async def test_an_offset_stored_by_a_slave_is_committed_to_the_returned_master(owner: Owner) -> None:
    """Seed 9740181: the slave's response arrived when the routes already named the master."""
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


async def test_a_lower_offset_is_not_committed_to_a_restarted_broker(owner: Owner) -> None:
    await owner.store.commit(owner.queue, 7)
    await owner.lose_connection()
    await owner.persist(6)
    assert owner.commits == [7]


async def another_owner_begins(owner: Owner, offset: int) -> Overlaps:
    """Store `offset` as another member, which believes this one dead. Returns our offset watcher."""
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


async def test_one_commit_after_each_interruption_checks_the_stored_offset(owner: Owner) -> None:
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


async def test_an_unchanged_offset_is_checked_periodically_and_stored_if_lost(owner: Owner) -> None:
    """The repeated commit does not change `committed_at`."""
    await owner.store.commit(owner.queue, 7)
    committed_at = owner.store.committed_at[owner.queue]
    await owner.persist(7)
    assert (owner.commits, owner.store.is_check_due()) == ([7], False)
    owner.clock.turn(OFFSET_CHECK_SECONDS)
    owner.store.begin_ownership(owner.broker.create_topic(TOPIC, 2)[1], 3)  # needs no check yet
    assert owner.store.is_check_due()
    del owner.broker.offsets[GROUP, owner.queue]
    await owner.persist(7)
    assert (owner.stored, owner.store.is_check_due()) == (7, False)
    await owner.persist(7)
    assert owner.commits == [7, 7]
    assert owner.store.committed_at[owner.queue] == committed_at
    del owner.broker.offsets[GROUP, owner.queue]
    await owner.store.check_stored([owner.queue])
    assert owner.commits == [7, 7]
    owner.clock.turn(OFFSET_CHECK_SECONDS)
    await owner.store.check_stored([owner.queue])
    assert owner.commits == [7, 7, 7]


async def test_offset_zero_is_committed_even_if_the_broker_returned_zero(owner: Owner) -> None:
    """Brokers of 4.9 return 0 also if they have no offset."""
    owner.store.begin_ownership(owner.queue, 0)
    await owner.persist(0)
    await owner.persist(0)
    assert owner.commits == [0]


async def test_one_query_checks_all_unchanged_offsets_of_a_topic(
    broker: ScriptedBroker, owner: Owner, flowing: ManualClock
) -> None:
    """After a loss, the first commit creates the table alone, also at a release: of two at once, one would be lost."""
    queues = broker.create_topic(TOPIC, 3)
    at_once, most = 0, 0

    async def update(command: RemotingCommand) -> Reply:
        nonlocal at_once, most
        at_once += 1
        most = max(most, 0 if broker.offsets else at_once)
        await flowing.sleep(0.01)
        at_once -= 1
        return broker.update(command)

    await owner.store.persist(dict.fromkeys(queues, 7))
    reads = owner.reads
    flowing.turn(OFFSET_CHECK_SECONDS)
    assert await owner.store.persist(dict.fromkeys(queues, 7))
    await owner.store.persist(dict.fromkeys(queues, 7))
    assert (owner.reads, [broker.commits_of(queue) for queue in queues]) == (reads + 1, [[7]] * 3)
    flowing.turn(OFFSET_CHECK_SECONDS)
    broker.offsets.clear()
    broker.peer.on(UPDATE, update)
    await owner.store.persist(dict.fromkeys(queues, 7))
    assert ([broker.commits_of(queue) for queue in queues], most) == ([[7, 7]] * 3, 1)
    assert broker.offsets == {(GROUP, queue): 7 for queue in queues}
    broker.offsets.clear()
    await asyncio.gather(*(owner.store.commit_upward(queue, 7) for queue in queues))
    assert (broker.offsets, most) == ({(GROUP, queue): 7 for queue in queues}, 1)


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_check_of_unchanged_offsets_ends_with_the_ownership(owner: Owner, *, is_alone: bool) -> None:
    """The queue is released right after the round has begun."""
    other = owner.broker.create_topic(TOPIC, 2)[1]
    await owner.persist(7)
    owner.clock.turn(OFFSET_CHECK_SECONDS)
    del owner.broker.offsets[GROUP, owner.queue]
    offsets = {owner.queue: 7} if is_alone else {owner.queue: 7, other: 3}
    a_round = asyncio.create_task(owner.store.persist(offsets))
    await asyncio.sleep(0)
    owner.store.forget(owner.queue)
    assert await a_round
    assert owner.commits == [7]


@pytest.mark.parametrize("released", [0, 1])
async def test_a_queue_may_be_released_while_its_unchanged_offset_is_checked(owner: Owner, released: int) -> None:
    """One query is sent for both queues."""
    queues = owner.broker.create_topic(TOPIC, 2)
    await owner.store.persist(dict.fromkeys(queues, 7))
    owner.clock.turn(OFFSET_CHECK_SECONDS)

    def query(command: RemotingCommand) -> Reply:
        owner.store.forget(queues[released])
        return owner.broker.query(command)

    owner.broker.peer.on(RequestCode.QUERY_CONSUMER_OFFSET, query)
    assert await owner.store.persist(dict.fromkeys(queues, 7))
    assert owner.broker.commits_of(queues[0]) == owner.broker.commits_of(queues[1]) == [7]


async def test_unchanged_offsets_are_checked_at_each_broker(owner: Owner) -> None:
    """A round fails if one of them has no address."""
    await owner.persist(7)
    other = MessageQueue(TOPIC, "b", 0)
    owner.store.begin_ownership(other, 3)
    owner.clock.turn(OFFSET_CHECK_SECONDS)
    reads = owner.reads
    assert not await owner.store.persist({owner.queue: 7, other: 3})
    assert owner.reads == reads + 1


async def test_an_offset_below_the_committed_one_is_not_checked(owner: Owner) -> None:
    await owner.persist(7)
    owner.clock.turn(OFFSET_CHECK_SECONDS)
    reads = owner.reads
    await owner.persist(6)
    assert owner.reads == reads


async def test_a_check_of_unchanged_offsets_does_not_undo_a_reset_that_follows(owner: Owner) -> None:
    """The round also commits another queue. The broker has the operator's reset, and refuses this member's commit."""
    other = owner.broker.create_topic(TOPIC, 2)[1]
    await owner.persist(7)
    owner.clock.turn(OFFSET_CHECK_SECONDS)
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


async def test_a_waiting_commit_of_a_previous_ownership_is_dropped(owner: Owner) -> None:
    go_on = owner.hold_next_commit()
    under_way = await owner.begin(owner.persist(7))
    waiting = asyncio.create_task(owner.persist(8))
    await asyncio.sleep(0)
    owner.store.forget(owner.queue)
    go_on.set()
    await asyncio.gather(under_way, waiting)
    assert owner.commits == [7]
    assert owner.queue not in owner.store.committed


async def test_the_first_commits_of_a_topic_are_not_sent_concurrently(
    broker: ScriptedBroker, client: ClientInstance, flowing: ManualClock
) -> None:
    """The first commit creates the broker's table of the topic. If two arrive at once, one table is lost."""
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


async def test_a_commit_stored_after_its_deadline_is_corrected_by_the_next_round(owner: Owner) -> None:
    """The broker was unresponsive, and stored the older offset last. The next round repeats the newer one."""
    go_on = owner.hold_next_commit()
    late = await owner.begin(owner.persist(7))
    await owner.let_deadline_pass()
    assert not await late
    assert await owner.persist(8)
    go_on.set()
    await eventually(lambda: owner.commits == [8, 7], "the older offset replaces the newer one")
    await owner.persist(8)
    assert owner.stored == 8
    await owner.persist(8)
    assert owner.commits == [8, 7, 8]


async def test_a_late_commit_does_not_count_as_an_operators_reset(owner: Owner) -> None:
    """The release waits for the late commit, and then commits again."""
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


async def test_a_last_commit_ends_while_a_reset_waits_for_the_next_pull(owner: Owner) -> None:
    """The broker ignores commits meanwhile. An earlier commit without a response must not repeat the last one."""
    await owner.commit_late(7)
    owner.set_back(0)
    owner.broker.peer.on(UPDATE, Reply(remark="Offset has been previously reset"))
    await owner.store.commit(owner.queue, 8, downward=True)
    assert await owner.store.commit_upward(owner.queue, 9)
    assert not await owner.store.wait_for_commits(owner.queue, 9, owner.clock.monotonic() + 20)


async def test_a_commit_without_a_caller_reports_no_error_to_asyncio(owner: Owner) -> None:
    """Neither one that fails, nor one that is cancelled by `close`."""
    errors, loop = list[object](), asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: errors.append(context))
    go_on = asyncio.Event()

    async def refuse_later(command: RemotingCommand) -> Reply:
        await go_on.wait()
        return Reply(ResponseCode.SYSTEM_ERROR, "not now")

    for is_closed in (False, True):
        owner.broker.peer.on(UPDATE, refuse_later)
        owner.broker.peer.requests.clear()
        commit = await owner.begin(owner.store.commit(owner.queue, 7))
        commit.cancel()
        await asyncio.wait((commit,))
        if is_closed:
            await owner.store.close()
        go_on.set()
        await eventually(lambda: not owner.store._under_way, "the commit has ended")
        go_on.clear()
    gc.collect()
    assert not errors


@pytest.mark.parametrize(
    ("code", "is_refreshed"), [(ResponseCode.TOPIC_NOT_EXIST, True), (ResponseCode.SYSTEM_ERROR, False)]
)
async def test_a_broker_that_no_longer_has_the_queue_causes_a_new_route(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, code: ResponseCode, is_refreshed: bool
) -> None:
    topics = list[str]()
    monkeypatch.setattr(owner.client.routes, "refresh_soon", topics.extend)
    owner.broker.peer.on(UPDATE, Reply(code, "moved"))
    assert not await owner.persist(7)
    assert topics == ([TOPIC] if is_refreshed else [])


async def test_a_reset_ends_the_checks_of_a_new_ownership(owner: Owner) -> None:
    owner.store.begin_ownership(owner.queue, await owner.store.read(owner.queue), Overlaps())
    reads = owner.reads
    await owner.store.commit(owner.queue, 2, downward=True)
    await owner.persist(3)
    assert (owner.commits, owner.reads) == ([2, 3], reads)


async def test_a_late_commit_that_ends_during_another_one_may_have_replaced_it(owner: Owner) -> None:
    first = owner.hold_next_commit()
    late = await owner.begin(owner.persist(7))
    await owner.let_deadline_pass()
    assert not await late
    owner.broker.peer.requests.clear()
    second = owner.hold_next_commit()
    commit = await owner.begin(owner.persist(8))
    owner.clock.turn(0.5)
    first.set()
    await eventually(lambda: owner.commits == [7], "the late commit is stored")
    await owner.client.routes.refresh(TOPIC)  # the response to the late commit has arrived before this one
    second.set()
    await commit
    await owner.persist(8)
    assert owner.commits == [7, 8, 8]


async def test_cancelling_the_caller_does_not_cancel_its_commit(owner: Owner) -> None:
    """The next commit must not overtake the request in flight."""
    go_on = owner.hold_next_commit()
    first = await owner.begin(owner.store.commit(owner.queue, 7))
    first.cancel()
    await asyncio.wait((first,))
    second = asyncio.create_task(owner.store.commit(owner.queue, 8))
    await owner.clock.advance(1.0)
    go_on.set()
    await second
    assert owner.commits == [7, 8]


async def test_a_commit_rejected_by_a_waiting_reset_does_not_count_as_stored(owner: Owner) -> None:
    """The broker responds with success, but stores nothing."""
    owner.broker.peer.on(UPDATE, Reply(remark="Offset has been previously reset"))
    await owner.persist(7)
    assert owner.store.committed[owner.queue] == 4


@pytest.mark.parametrize("code", [RequestCode.QUERY_CONSUMER_OFFSET, UPDATE])
async def test_a_wide_group_has_few_offset_requests_in_flight(owner: Owner, code: RequestCode) -> None:
    """A busy machine would read most responses too late. A request's deadline starts when it is sent."""
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


async def test_a_round_with_a_failed_commit_fails_although_its_checks_succeed(owner: Owner) -> None:
    other = owner.broker.create_topic(TOPIC, 2)[1]
    await owner.persist(7)
    owner.clock.turn(OFFSET_CHECK_SECONDS)
    owner.broker.peer.on(UPDATE, Reply(ResponseCode.SYSTEM_ERROR, "not now"))
    assert not await owner.store.persist({owner.queue: 7, other: 3})


async def test_failed_commits_of_a_round_log_one_line_for_each_broker(owner: Owner) -> None:
    owner.broker.peer.on(UPDATE, Reply(ResponseCode.SYSTEM_ERROR, "not now"))
    queues = owner.broker.create_topic(TOPIC, 5)
    with capture_logs() as logs:
        assert not await owner.store.persist(dict.fromkeys(queues, 7))
    assert [(line["event"], line["broker"], line["queue"], line["queues"]) for line in logs] == [
        ("offset.commit_failed", "a", str(queues[0]), 5)
    ]


async def test_a_round_does_nothing_for_unchanged_offsets(owner: Owner) -> None:
    """The round creates no task and does not wait, because a group has thousands of such queues."""
    await owner.persist(7)
    a_round = owner.store.persist({owner.queue: 7})
    with pytest.raises(StopIteration):
        a_round.send(None)
