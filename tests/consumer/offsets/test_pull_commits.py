"""Commits that pulls carry: when a pull may carry one, and which commits wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import cast
from unittest.mock import AsyncMock, Mock

import pytest

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.offsets.pending_commits import (
    COMMIT_ANSWER_SECONDS,
    RECENT_COMMIT_SECONDS,
    RECHECK_INTERVAL_SECONDS,
    FirstCommits,
    PullCommit,
    PullCommits,
    UnansweredCommits,
)
from rmqd.consumer.offsets.persistence import OFFSET_WATCH_SECONDS
from rmqd.consumer.pull.pull_request import PullRepeatedError, PullRequest
from rmqd.consumer.services import CarriedCommit
from rmqd.errors import RemotingClosedError, RemotingTimeoutError, RmqdError
from rmqd.errors.broker_errors import BrokerError
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock
from tests.consumer.blocks import QUEUE
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.consumer.offsets.owner import UPDATE, Overlaps, Owner
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
FOUND = RemotingCommand(code=ResponseCode.SUCCESS)
NO_CONNECTION = cast("RemotingConnection", None)


@dataclass(frozen=True, slots=True)
class Puller:
    """Pulls an owner's queue, from offset 4 on."""

    owner: Owner
    on: RemotingConnection

    async def carry(self, offset: int, *, may: bool = True) -> CarriedCommit | None:
        """Prepare the commit of a pull."""
        return await self.owner.store.commit_with_pull(self.owner.queue, offset, self.on, lambda: may)

    async def send(self, offset: int) -> asyncio.Future[RemotingCommand]:
        """Send a pull that carries the offset and arrives at `arrive`. The caller sets the returned response."""
        commit = await self.carry(offset)
        assert commit is not None
        assert commit.offset == offset
        answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(commit.ended)
        return answer

    def arrive(self, offset: int) -> None:
        """Let the broker store the pull's offset and hold the pull."""
        self.owner.set_back(offset)


@pytest.fixture
async def puller(owner: Owner) -> Puller:
    on = owner.client.remoting.connected(owner.broker.peer.address)
    assert on is not None
    owner.store.carries_until = float("inf")
    return Puller(owner, on)


async def test_one_pull_at_a_time_carries_an_offset_above_the_stored_one(puller: Puller) -> None:
    assert await puller.carry(4) is None
    answer = await puller.send(6)
    assert await puller.carry(7) is None
    answer.set_result(FOUND)
    await asyncio.sleep(0)
    assert puller.owner.store.committed[puller.owner.queue] == 6
    assert await puller.carry(6) is None
    assert await puller.carry(7)


async def _reset(owner: Owner) -> None:
    owner.broker.peer.on(UPDATE, Reply(ResponseCode.SYSTEM_BUSY, "not now"))
    with contextlib.suppress(BrokerError):
        await owner.store.commit(owner.queue, 2, downward=True)


async def _commit(owner: Owner) -> None:
    owner.hold_next_commit()
    (await owner.begin(owner.persist(5))).cancel()


async def _release(owner: Owner) -> None:
    owner.store.forget(owner.queue)


async def _be_suspended(owner: Owner) -> None:
    owner.store.carries_until = owner.clock.monotonic()


async def _take_over_above_others(owner: Owner) -> None:
    owner.store.begin_ownership(owner.queue, 4, Overlaps())
    owner.set_back(9)


async def _lose_connection(owner: Owner) -> None:
    await owner.lose_connection()


@pytest.mark.parametrize(
    "disturb", [_reset, _commit, _release, _be_suspended, _take_over_above_others, _lose_connection]
)
async def test_a_pull_carries_no_commit_that_could_replace_another_offset(
    puller: Puller, disturb: Callable[[Owner], Awaitable[None]]
) -> None:
    await disturb(puller.owner)
    assert await puller.carry(6) is None


async def test_a_pull_from_a_slave_or_without_the_lock_carries_no_commit(puller: Puller) -> None:
    async with Peer() as slave:
        other = await puller.owner.client.remoting.connection(slave.address)
        assert await replace(puller, on=other).carry(6) is None
    assert await puller.carry(6, may=False) is None
    assert await puller.carry(6)


@pytest.mark.parametrize("is_last", [False, True])
async def test_other_commits_wait_until_the_broker_has_the_pulls_commit(puller: Puller, is_last: bool) -> None:
    """Otherwise the pull's commit could replace a reset, or the last commit before a release."""
    owner = puller.owner
    await puller.send(6)
    work = owner.store.commit_upward(owner.queue, 8) if is_last else owner.store.commit(owner.queue, 2, downward=True)
    commit = asyncio.create_task(work)
    await owner.broker.peer.received(QUERY)
    await owner.clock.advance(COMMIT_ANSWER_SECONDS / 2)
    assert owner.commits == []
    puller.arrive(6)
    await owner.clock.advance(1.0)
    await commit
    assert owner.commits == [8 if is_last else 2]
    assert not await owner.store.wait_for_commits(owner.queue, owner.stored, owner.clock.monotonic() + 60.0)


async def test_a_delayed_pull_holds_up_the_next_commit_which_is_then_repeated(puller: Puller) -> None:
    owner = puller.owner
    answer = await puller.send(6)
    await owner.persist(8)
    assert owner.commits == [], "the round leaves it to the next pull, or to the next round"
    await owner.clock.advance(RECENT_COMMIT_SECONDS)
    commit = asyncio.create_task(owner.persist(8))
    await owner.clock.advance(COMMIT_ANSWER_SECONDS)
    await commit
    assert owner.commits == [8]
    puller.arrive(6)
    answer.set_exception(RemotingClosedError("a", "lost"))
    await asyncio.sleep(0)
    await owner.clock.advance(5.0)
    await owner.persist(8)
    assert owner.commits == [8, 8]


async def test_an_overdue_pull_is_not_ended_by_another_commit_of_the_same_offset(puller: Puller) -> None:
    """It may still arrive, and replace a reset."""
    owner = puller.owner
    await puller.send(6)
    await owner.clock.advance(COMMIT_ANSWER_SECONDS)
    await owner.persist(6)
    await owner.store.commit(owner.queue, 2, downward=True)
    assert owner.commits == [6, 2]
    assert await puller.carry(7) is None


async def test_a_cancelled_pull_counts_until_its_response(puller: Puller) -> None:
    errors = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    (await puller.send(6)).cancel()
    await asyncio.sleep(0)
    assert await puller.carry(7) is None
    assert not errors


async def test_a_pull_needs_no_check_of_the_stored_offset_after_the_first_time(puller: Puller) -> None:
    owner = puller.owner
    owner.store.begin_ownership(owner.queue, 4, Overlaps())
    await owner.clock.advance(OFFSET_WATCH_SECONDS)
    reads = owner.reads
    assert await puller.carry(6)
    assert owner.reads == reads


async def test_a_pull_carries_no_commit_if_a_step_is_late_during_its_check(puller: Puller) -> None:
    owner = puller.owner
    owner.store.begin_ownership(owner.queue, 4, Overlaps())

    def query(command: RemotingCommand) -> Reply:
        owner.store.carries_until = owner.clock.monotonic()
        return owner.broker.query(command)

    owner.broker.peer.on(QUERY, query)
    assert await puller.carry(6) is None


async def test_a_pull_carries_no_commit_after_the_machine_was_suspended(
    puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the next step shows it."""
    puller.owner.store.carries_until = puller.owner.clock.monotonic() + 2.0
    monkeypatch.setattr("rmqd.consumer.offsets.broker_store.suspended_seconds", lambda: 2.0)
    assert await puller.carry(6) is None


@pytest.mark.parametrize("is_reset", [True, False])
async def test_an_overdue_pull_answered_during_another_commit_may_have_replaced_it(
    puller: Puller, *, is_reset: bool
) -> None:
    """So a reset is repeated, and so is a higher offset if the pull's offset was stored meanwhile."""
    owner, offset = puller.owner, 2 if is_reset else 7
    answer = await puller.send(6)
    await owner.clock.advance(COMMIT_ANSWER_SECONDS)
    if not is_reset:
        await owner.persist(6)
    go_on = owner.hold_next_commit()
    owner.broker.peer.requests.clear()
    commit = await owner.begin(owner.store.commit(owner.queue, offset, downward=is_reset))
    owner.clock.turn(0.5)
    answer.set_result(FOUND)
    await asyncio.sleep(0)
    go_on.set()
    await commit
    await owner.persist(offset)
    assert owner.commits[-2:] == [offset, offset]


@pytest.mark.parametrize(
    ("answer", "after", "seconds"),
    [
        (FOUND, 0.0, COMMIT_ANSWER_SECONDS + 30.0),  # `on_stored` did not change that
        (RemotingClosedError("a", "lost"), 0.0, COMMIT_ANSWER_SECONDS),
        (RemotingClosedError("a", "lost"), 4.0, 4.0 + 2.0),
        (RemotingTimeoutError("a", "no answer"), 4.0, COMMIT_ANSWER_SECONDS + 30.0),
    ],
)
async def test_an_ended_pull_delays_no_commit_but_may_replace_one_for_some_time(
    clock: ManualClock, answer: RemotingCommand | RmqdError, after: float, seconds: float
) -> None:
    stored, unanswered, began = list[PullCommit](), UnansweredCommits(clock), clock.monotonic()
    pulls, future = PullCommits(clock, unanswered, stored.append), asyncio.get_running_loop().create_future()
    future.add_done_callback(pulls.record_sending(QUEUE, 6, 0, NO_CONNECTION).ended)
    await clock.advance(after)
    future.set_result(answer) if isinstance(answer, RemotingCommand) else future.set_exception(answer)
    await asyncio.sleep(0)
    assert await pulls.wait_for_end(QUEUE, AsyncMock(side_effect=AssertionError)) is None
    assert not pulls.is_recent(QUEUE)
    assert [commit.offset for commit in stored] == ([6] if answer is FOUND else [])
    ended = asyncio.create_task(unanswered.wait_for_end(QUEUE, 9, began + 100.0))
    await clock.advance(began + seconds - 0.1 - clock.monotonic())
    assert not ended.done()
    await clock.advance(0.1)
    assert await ended


async def test_the_wait_for_a_pull_in_flight_returns_the_stored_offset(clock: ManualClock) -> None:
    pulls, began = PullCommits(clock, UnansweredCommits(clock), Mock()), clock.monotonic()
    pulls.record_sending(QUEUE, 6, 0, NO_CONNECTION)
    waiting = asyncio.create_task(pulls.wait_for_end(QUEUE, read := AsyncMock(return_value=4)))
    await clock.advance(COMMIT_ANSWER_SECONDS + 0.2)
    found = await waiting
    assert found is not None
    assert (found.stored, found.asked_at >= began + COMMIT_ANSWER_SECONDS) == (4, True)
    assert read.await_count == pytest.approx(COMMIT_ANSWER_SECONDS / RECHECK_INTERVAL_SECONDS + 1, abs=1)


async def test_the_wait_for_a_pull_in_flight_ends_when_the_broker_has_its_offset(clock: ManualClock) -> None:
    stored = list[PullCommit]()
    pulls = PullCommits(clock, UnansweredCommits(clock), stored.append)
    pulls.record_sending(QUEUE, 6, 0, NO_CONNECTION)
    assert await pulls.wait_for_end(QUEUE, AsyncMock(return_value=6)) == (clock.monotonic(), 6)
    assert [commit.offset for commit in stored] == [6]


async def test_a_pull_with_an_error_as_response_has_ended_at_the_broker(clock: ManualClock) -> None:
    """Its commit may have replaced one that was sent before the response."""
    unanswered, future = UnansweredCommits(clock), asyncio.get_running_loop().create_future()
    future.add_done_callback(PullCommits(clock, unanswered, Mock()).record_sending(QUEUE, 6, 0, NO_CONNECTION).ended)
    future.set_result(RemotingCommand(code=ResponseCode.SYSTEM_ERROR))
    await asyncio.sleep(0)
    assert await unanswered.wait_for_end(QUEUE, 9, clock.monotonic() + 100.0)
    unanswered.record_stored(QUEUE, clock.monotonic() - 0.5)
    assert unanswered.has(QUEUE)
    unanswered.record_stored(QUEUE, clock.monotonic())
    assert not unanswered.has(QUEUE)


@pytest.mark.parametrize(("offset", "has_table"), [(0, False), (1, True)])
def test_a_stored_offset_above_zero_proves_that_the_broker_has_the_table(offset: int, has_table: bool) -> None:
    """0 may mean no offset. Pulls carry commits only if the broker has the table."""
    firsts = FirstCommits(lambda queue: None)
    firsts.record_table(QUEUE, offset)
    assert firsts.has_table(QUEUE) is has_table


async def test_a_pull_is_not_sent_if_a_reset_arrives_while_it_waits_for_a_check(puller: Puller) -> None:
    """The response to an earlier pull reports it. The loop applies it at once, not after 15 s."""
    owner = puller.owner
    request = PullRequest(owner.client, GROUP, owner.queue, SubscriptionData(owner.queue.topic))

    async def carry(on: RemotingConnection) -> CarriedCommit | None:
        request.reset_to = 2
        return await replace(puller, on=on).carry(6, may=False)

    with pytest.raises(PullRepeatedError):
        await request.pull(4, 32, 15_000, carry)
    assert not owner.broker.pulls


async def test_the_pulls_of_a_killed_member_have_committed_its_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Otherwise all messages since the last round of commits would be handled again."""
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=60) as m:
        for number in range(200):
            await broker.store(queue, b"%d" % number)
            await seen.has(*(b"%d" % one for one in range(number + 1)))
            if broker.offsets[GROUP, queue] >= 10:
                break
        await m.die()
    assert broker.offsets[GROUP, queue] >= 10
    assert broker.commits_of(queue) == sorted(set(broker.commits_of(queue)))
    assert not [pull for pull in broker.pulls if pull.commit_offset > pull.queue_offset]
