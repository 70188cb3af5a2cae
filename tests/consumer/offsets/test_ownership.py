"""What the offset store knows from one ownership of a queue to the next, and what its callers are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest

from rmqd.codes import ResponseCode
from rmqd.consumer.offsets.persistence import OFFSET_WATCH_SECONDS, RESET_REPORT_SECONDS
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import BrokerError
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.offsets.owner import UPDATE, Overlaps, Owner
from tests.consumer.scripted_broker import ScriptedBroker

REFUSED = Reply(ResponseCode.SYSTEM_ERROR, "not now")
TAKEN_FOR_NOTHING = Reply(remark="Offset has been previously reset")


class Resets(Overlaps):
    """Hears of resets too."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets: list[int] = []

    def move_to(self, offset: int) -> None:
        self.offsets.append(offset)


async def soon(work: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
    """Start it; it waits for its turn."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def refused_reset(owner: Owner, offset: int) -> None:
    owner.broker.peer.on(UPDATE, REFUSED)
    with contextlib.suppress(BrokerError):
        await owner.store.commit(owner.queue, offset, downward=True)
    owner.broker.peer.on(UPDATE, owner.broker.update)


async def test_a_broker_has_five_seconds_for_a_commit(owner: Owner) -> None:
    owner.broker.peer.on(UPDATE, None)
    commit = await owner.begin(owner.persist(7))
    await owner.client.routes.refresh(TOPIC)
    await owner.clock.advance(4.9)
    assert not commit.done()
    await owner.clock.advance(0.2)
    assert not await commit


async def test_a_lost_unchanged_offset_is_stored_again_after_half_a_minute(owner: Owner) -> None:
    await owner.persist(7)
    owner.broker.offsets.clear()
    owner.clock.turn(29.9)
    await owner.persist(7)
    assert owner.commits == [7]
    owner.clock.turn(0.1)
    await owner.persist(7)
    assert owner.commits == [7, 7]


async def test_failures_are_counted_from_none(owner: Owner) -> None:
    assert owner.store.failures == 0
    owner.broker.peer.on(UPDATE, REFUSED)
    assert not await owner.persist(7)
    assert not await owner.persist(8)
    assert owner.store.failures == 2


async def test_a_round_of_which_one_commit_fails_is_not_taken(broker: ScriptedBroker, owner: Owner) -> None:
    first, second = broker.create_topic(TOPIC, 2)

    def update(command: RemotingCommand) -> Reply:
        return REFUSED if command.ext_fields["queueId"] == str(second.queue_id) else broker.update(command)

    broker.peer.on(UPDATE, update)
    assert not await owner.store.persist({first: 7, second: 7})
    assert await owner.store.persist({first: 8})
    assert broker.commits_of(first) == [7, 8]


async def test_the_end_leaves_no_commit_under_way(owner: Owner) -> None:
    """Its caller has gone, and its broker is silent."""
    owner.broker.peer.on(UPDATE, None)
    caller = await owner.begin(owner.store.commit(owner.queue, 7))
    caller.cancel()
    await asyncio.wait((caller,))
    await owner.store.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("commit:")]


async def test_the_end_remembers_no_commit_that_has_ended(owner: Owner) -> None:
    for offset in range(5, 50):
        await owner.persist(offset)
    assert not owner.store._under_way


async def test_founding_stores_the_starts_of_a_topic_side_by_side(
    broker: ScriptedBroker, owner: Owner, flowing: ManualClock
) -> None:
    """But for the first, which makes the broker's table."""
    queues = broker.create_topic(TOPIC, 8)
    at_once, most = 0, [0]

    async def update(command: RemotingCommand) -> Reply:
        nonlocal at_once
        at_once += 1
        most.append(at_once)
        await flowing.sleep(0.01)
        at_once -= 1
        return broker.update(command)

    await owner.store.store_start_offset(queues[1], 3)
    broker.peer.on(UPDATE, update)
    await asyncio.gather(*(owner.store.store_start_offset(queue, 3) for queue in queues[1:]))
    assert max(most) > 1
    assert {broker.offsets[GROUP, queue] for queue in queues[1:]} == {3}


@pytest.mark.parametrize("again", ["given up", "taken again"])
async def test_nothing_of_a_former_ownership_is_known(owner: Owner, again: str) -> None:
    await owner.store.commit(owner.queue, 7)
    if again == "given up":
        owner.store.forget(owner.queue)
    else:
        owner.store.begin_ownership(owner.queue, None)
    assert owner.queue not in owner.store.committed
    assert owner.queue not in owner.store.committed_at
    assert not owner.store.may_have_committed(owner.queue, 7)


async def test_what_was_given_up_cannot_be_lost(owner: Owner) -> None:
    await owner.store.commit(owner.queue, 7)
    owner.store.forget(owner.queue)
    owner.broker.peer.cut()
    with contextlib.suppress(RmqdError):
        await owner.store.read(owner.queue)
    assert not owner.store.may_be_lost(owner.queue)


async def test_a_former_ownerships_watcher_hears_nothing_more(owner: Owner) -> None:
    former = Resets()
    owner.store.begin_ownership(owner.queue, 4, former)
    owner.store.begin_ownership(owner.queue, 4)
    owner.set_back(6)
    await owner.store.commit(owner.queue, 7)
    assert owner.stored == 7
    assert former.messages == 0


async def test_a_reset_of_a_former_ownership_lowers_nothing(owner: Owner) -> None:
    await refused_reset(owner, 2)
    owner.store.begin_ownership(owner.queue, 7)
    await owner.persist(5)
    assert owner.commits == []


async def test_a_reset_that_was_taken_lowers_nothing_more(owner: Owner) -> None:
    await owner.store.commit(owner.queue, 7)
    await owner.store.commit(owner.queue, 3, downward=True)
    await owner.persist(2)
    assert owner.commits == [7, 3]
    owner.set_back(1)
    assert await owner.store.commit_upward(owner.queue, 5)
    assert owner.stored == 1


async def test_a_commit_lowers_nothing(owner: Owner) -> None:
    await owner.store.commit(owner.queue, 7)
    await owner.store.commit(owner.queue, 5)
    assert owner.commits == [7]


async def test_a_commit_of_before_a_reset_and_a_hand_over_is_dropped(owner: Owner) -> None:
    """Each of the two makes it outdated, and so do both."""
    go_on = owner.hold_next_commit()
    under_way = await owner.begin(owner.persist(7))
    waiting = await soon(owner.persist(8))
    reset = asyncio.create_task(owner.store.commit(owner.queue, 2, downward=True))
    await asyncio.sleep(0)
    owner.store.forget(owner.queue)
    go_on.set()
    await asyncio.gather(under_way, waiting, reset)
    assert owner.commits == [7]


async def test_who_gives_up_a_queue_that_is_somebody_elses_meanwhile_is_told(owner: Owner) -> None:
    go_on = owner.hold_next_commit()
    under_way = await owner.begin(owner.persist(7))
    giving_up = await soon(owner.store.commit_upward(owner.queue, 9))
    owner.store.forget(owner.queue)
    go_on.set()
    await under_way
    assert not await giving_up
    assert owner.commits == [7]


async def test_who_gives_up_a_queue_that_is_reset_while_the_commit_is_under_way_is_told(owner: Owner) -> None:
    go_on = owner.hold_next_commit()
    giving_up = await owner.begin(owner.store.commit_upward(owner.queue, 9))
    owner.store.forget(owner.queue)
    go_on.set()
    assert not await giving_up


async def test_nothing_is_sent_for_who_may_not_commit(owner: Owner) -> None:
    assert not await owner.store.commit_upward(owner.queue, 9, lambda: False)
    assert owner.commits == []
    assert await owner.store.commit_upward(owner.queue, 9, lambda: True)
    assert owner.commits == [9]


async def test_who_gives_up_is_told_that_the_broker_has_it(owner: Owner) -> None:
    """Its own commit, another member's higher one, or an operator's lower one."""
    await owner.store.commit(owner.queue, 7)
    assert await owner.store.commit_upward(owner.queue, 7)
    owner.set_back(9)
    assert await owner.store.commit_upward(owner.queue, 8)
    owner.set_back(1)
    assert await owner.store.commit_upward(owner.queue, 8)
    assert owner.commits == [7]


async def test_who_gives_up_where_a_reset_waits_is_told_that_it_is_settled(owner: Owner) -> None:
    owner.broker.peer.on(UPDATE, TAKEN_FOR_NOTHING)
    assert await owner.store.commit_upward(owner.queue, 9)


async def test_zero_is_no_reset_where_nothing_was_known(owner: Owner) -> None:
    """Brokers of 4.9 say 0 where nothing is stored."""
    owner.store.begin_ownership(owner.queue, None)
    owner.set_back(0)
    assert await owner.store.commit_upward(owner.queue, 9)
    assert owner.stored == 9


@pytest.mark.parametrize(("offset", "stored", "twice"), [(9, 8, 1), (9, 12, 2), (7, 9, 0), (6, 9, 0)])
async def test_what_another_owner_has_finished_too_counts_at_the_end(
    owner: Owner, offset: int, stored: int, twice: int
) -> None:
    overlaps = Overlaps()
    owner.store.begin_ownership(owner.queue, 4, overlaps)
    await owner.store.commit(owner.queue, 7)
    owner.set_back(stored)
    assert await owner.store.commit_upward(owner.queue, offset)
    assert overlaps.messages == twice
    assert owner.stored == max(stored, offset)


async def test_what_was_seen_behind_a_late_commit_need_not_be_looked_at_again(owner: Owner) -> None:
    go_on = owner.hold_next_commit()
    late = await owner.begin(owner.persist(7))
    await owner.let_deadline_pass()
    assert not await late
    go_on.set()
    await owner.clock.until(lambda: owner.commits == [7], "the late one is taken up")
    await owner.clock.advance(1.0)
    owner.set_back(9)
    assert await owner.store.commit_upward(owner.queue, 8)
    assert not await owner.store.wait_for_commits(owner.queue, 8, owner.clock.monotonic() + 20)


async def test_a_lower_offset_after_a_take_over_in_peace_is_an_operators(owner: Owner) -> None:
    resets = Resets()
    owner.store.begin_ownership(owner.queue, 4, resets)
    owner.set_back(2)
    await owner.persist(7)
    await owner.clock.advance(RESET_REPORT_SECONDS)
    await owner.persist(7)
    assert (owner.commits, resets.offsets) == ([], [2])


@pytest.mark.parametrize("stored", [2, 0])
async def test_a_lower_offset_after_a_take_over_without_a_farewell_may_be_a_former_owners(
    owner: Owner, stored: int
) -> None:
    resets = Resets()
    owner.store.begin_ownership(owner.queue, 4, resets, in_peace=False)
    owner.set_back(stored)
    await owner.persist(7)
    assert owner.stored == 7
    assert resets.offsets == []


async def test_what_others_commit_to_a_queue_without_an_offset_counts_from_its_beginning(owner: Owner) -> None:
    overlaps = Overlaps()
    owner.store.begin_ownership(owner.queue, None, overlaps)
    owner.set_back(3)
    await owner.persist(7)
    assert overlaps.messages == 3
    assert owner.stored == 7


async def test_after_a_commit_that_a_waiting_reset_kept_out_nothing_is_committed_over_the_reset(owner: Owner) -> None:
    """However late it is. The next pull brings the reset, or it is found where it stays."""
    resets = Resets()
    owner.store.begin_ownership(owner.queue, 4, resets)
    await owner.clock.advance(OFFSET_WATCH_SECONDS)
    owner.broker.peer.on(UPDATE, TAKEN_FOR_NOTHING)
    await owner.persist(7)
    owner.broker.peer.on(UPDATE, owner.broker.update)
    owner.set_back(6)
    await owner.persist(8)
    await owner.clock.advance(RESET_REPORT_SECONDS)
    await owner.persist(9)
    assert (owner.commits, resets.offsets, owner.stored) == ([], [6], 6)
