"""The offset store across ownerships of a queue, and the results of its methods."""

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
    """An offset watcher that records resets too."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets: list[int] = []

    def move_to(self, offset: int) -> None:
        self.offsets.append(offset)


async def soon(work: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
    """Start the work, which waits for the queue's lock."""
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


async def test_failed_commits_are_counted(owner: Owner) -> None:
    assert owner.store.failures == 0
    owner.broker.peer.on(UPDATE, REFUSED)
    assert not await owner.persist(7)
    assert not await owner.persist(8)
    assert owner.store.failures == 2


async def test_a_round_with_a_failed_commit_returns_false(broker: ScriptedBroker, owner: Owner) -> None:
    first, second = broker.create_topic(TOPIC, 2)

    def update(command: RemotingCommand) -> Reply:
        return REFUSED if command.ext_fields["queueId"] == str(second.queue_id) else broker.update(command)

    broker.peer.on(UPDATE, update)
    assert not await owner.store.persist({first: 7, second: 7})
    assert await owner.store.persist({first: 8})
    assert broker.commits_of(first) == [7, 8]


async def test_close_cancels_commits_in_flight(owner: Owner) -> None:
    """The caller was cancelled, and the broker does not respond."""
    owner.broker.peer.on(UPDATE, None)
    caller = await owner.begin(owner.store.commit(owner.queue, 7))
    caller.cancel()
    await asyncio.wait((caller,))
    await owner.store.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("commit:")]


async def test_finished_commits_are_not_kept_in_memory(owner: Owner) -> None:
    for offset in range(5, 50):
        await owner.persist(offset)
    assert not owner.store._under_way


async def test_start_offsets_of_a_topic_are_stored_concurrently(
    broker: ScriptedBroker, owner: Owner, flowing: ManualClock
) -> None:
    """Except for the first, which creates the broker's table."""
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
async def test_the_offset_of_a_previous_ownership_is_forgotten(owner: Owner, again: str) -> None:
    await owner.store.commit(owner.queue, 7)
    if again == "given up":
        owner.store.forget(owner.queue)
    else:
        owner.store.begin_ownership(owner.queue, None)
    assert owner.queue not in owner.store.committed
    assert owner.queue not in owner.store.committed_at
    assert not owner.store.may_have_committed(owner.queue, 7)


async def test_the_offset_of_a_released_queue_cannot_be_lost(owner: Owner) -> None:
    await owner.store.commit(owner.queue, 7)
    owner.store.forget(owner.queue)
    owner.broker.peer.cut()
    with contextlib.suppress(RmqdError):
        await owner.store.read(owner.queue)
    assert not owner.store.may_be_lost(owner.queue)


async def test_the_watcher_of_a_previous_ownership_is_not_notified(owner: Owner) -> None:
    former = Resets()
    owner.store.begin_ownership(owner.queue, 4, former)
    owner.store.begin_ownership(owner.queue, 4)
    owner.set_back(6)
    await owner.store.commit(owner.queue, 7)
    assert owner.stored == 7
    assert former.messages == 0


async def test_a_reset_of_a_previous_ownership_does_not_lower_the_offset(owner: Owner) -> None:
    await refused_reset(owner, 2)
    owner.store.begin_ownership(owner.queue, 7)
    await owner.persist(5)
    assert owner.commits == []


async def test_a_confirmed_reset_allows_no_further_lower_commit(owner: Owner) -> None:
    await owner.store.commit(owner.queue, 7)
    await owner.store.commit(owner.queue, 3, downward=True)
    await owner.persist(2)
    assert owner.commits == [7, 3]
    owner.set_back(1)
    assert await owner.store.commit_upward(owner.queue, 5)
    assert owner.stored == 1


async def test_a_commit_does_not_lower_the_offset(owner: Owner) -> None:
    await owner.store.commit(owner.queue, 7)
    await owner.store.commit(owner.queue, 5)
    assert owner.commits == [7]


async def test_a_commit_from_before_a_reset_and_a_hand_over_is_dropped(owner: Owner) -> None:
    """Either event alone makes the commit outdated, and so do both."""
    go_on = owner.hold_next_commit()
    under_way = await owner.begin(owner.persist(7))
    waiting = await soon(owner.persist(8))
    reset = asyncio.create_task(owner.store.commit(owner.queue, 2, downward=True))
    await asyncio.sleep(0)
    owner.store.forget(owner.queue)
    go_on.set()
    await asyncio.gather(under_way, waiting, reset)
    assert owner.commits == [7]


async def test_a_waiting_last_commit_returns_false_after_the_ownership_ended(owner: Owner) -> None:
    go_on = owner.hold_next_commit()
    under_way = await owner.begin(owner.persist(7))
    giving_up = await soon(owner.store.commit_upward(owner.queue, 9))
    owner.store.forget(owner.queue)
    go_on.set()
    await under_way
    assert not await giving_up
    assert owner.commits == [7]


async def test_a_last_commit_in_flight_returns_false_after_the_ownership_ended(owner: Owner) -> None:
    go_on = owner.hold_next_commit()
    giving_up = await owner.begin(owner.store.commit_upward(owner.queue, 9))
    owner.store.forget(owner.queue)
    go_on.set()
    assert not await giving_up


async def test_a_last_commit_is_not_sent_if_may_commit_returns_false(owner: Owner) -> None:
    assert not await owner.store.commit_upward(owner.queue, 9, lambda: False)
    assert owner.commits == []
    assert await owner.store.commit_upward(owner.queue, 9, lambda: True)
    assert owner.commits == [9]


async def test_a_last_commit_succeeds_without_a_request_if_none_is_needed(owner: Owner) -> None:
    """The broker has the same offset, another member's higher one, or an operator's lower one."""
    await owner.store.commit(owner.queue, 7)
    assert await owner.store.commit_upward(owner.queue, 7)
    owner.set_back(9)
    assert await owner.store.commit_upward(owner.queue, 8)
    owner.set_back(1)
    assert await owner.store.commit_upward(owner.queue, 8)
    assert owner.commits == [7]


async def test_a_last_commit_succeeds_if_a_reset_waits_at_the_broker(owner: Owner) -> None:
    owner.broker.peer.on(UPDATE, TAKEN_FOR_NOTHING)
    assert await owner.store.commit_upward(owner.queue, 9)


async def test_zero_is_not_a_reset_if_no_offset_was_known(owner: Owner) -> None:
    """Brokers of 4.9 return 0 also if they have no offset."""
    owner.store.begin_ownership(owner.queue, None)
    owner.set_back(0)
    assert await owner.store.commit_upward(owner.queue, 9)
    assert owner.stored == 9


@pytest.mark.parametrize(("offset", "stored", "twice"), [(9, 8, 1), (9, 12, 2), (7, 9, 0), (6, 9, 0)])
async def test_messages_finished_by_two_owners_are_counted_at_the_release(
    owner: Owner, offset: int, stored: int, twice: int
) -> None:
    overlaps = Overlaps()
    owner.store.begin_ownership(owner.queue, 4, overlaps)
    await owner.store.commit(owner.queue, 7)
    owner.set_back(stored)
    assert await owner.store.commit_upward(owner.queue, offset)
    assert overlaps.messages == twice
    assert owner.stored == max(stored, offset)


async def test_a_higher_offset_seen_after_a_late_commit_needs_no_wait(owner: Owner) -> None:
    await owner.commit_late(7)
    owner.set_back(9)
    assert await owner.store.commit_upward(owner.queue, 8)
    assert not await owner.store.wait_for_commits(owner.queue, 8, owner.clock.monotonic() + 20)


async def test_a_lower_offset_after_a_regular_hand_over_is_a_reset(owner: Owner) -> None:
    resets = Resets()
    owner.store.begin_ownership(owner.queue, 4, resets)
    owner.set_back(2)
    await owner.persist(7)
    await owner.clock.advance(RESET_REPORT_SECONDS)
    await owner.persist(7)
    assert (owner.commits, resets.offsets) == ([], [2])


@pytest.mark.parametrize("stored", [2, 0])
async def test_a_lower_offset_is_not_a_reset_if_the_previous_owner_may_be_alive(owner: Owner, stored: int) -> None:
    resets = Resets()
    owner.store.begin_ownership(owner.queue, 4, resets, in_peace=False)
    owner.set_back(stored)
    await owner.persist(7)
    assert owner.stored == 7
    assert resets.offsets == []


async def test_others_commits_to_a_queue_without_an_offset_count_from_zero(owner: Owner) -> None:
    overlaps = Overlaps()
    owner.store.begin_ownership(owner.queue, None, overlaps)
    owner.set_back(3)
    await owner.persist(7)
    assert overlaps.messages == 3
    assert owner.stored == 7


async def test_a_reset_that_rejected_a_commit_is_not_replaced_by_later_commits(owner: Owner) -> None:
    """Also after the watch time. The next pull returns the reset, or the stored offset shows it."""
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
