"""Rounds of commits: the committed offsets, and the check of stored offsets after a late round."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmqd.consumer.context import GroupContext
from rmqd.consumer.offsets.persistence import OffsetPersistence
from rmqd.runtime import clock as rmqd_clock
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.groups import group_options

INTERVAL_SECONDS = group_options().persist_consumer_offset_interval_seconds
A, B = MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0)


class _Store:
    def __init__(self) -> None:
        self.doubts = 0
        self.carries_until = 0.0
        self.rounds: list[dict[MessageQueue, int]] = []
        self.go_on: dict[MessageQueue, asyncio.Event] = {}
        self.before_commit: Callable[[], object] = lambda: None
        self.committed: dict[MessageQueue, int] = {}
        self.needs_commit: Callable[[MessageQueue, int], bool] = lambda queue, offset: True
        self.is_check_due: Callable[[], bool] = lambda: False

    async def check_stored(self, queues: Collection[MessageQueue]) -> None:
        self.rounds += [{queue: self.committed[queue] for queue in queues}] if queues else []

    def recheck_stored_offsets(self) -> None:
        self.doubts += 1

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> bool:
        self.before_commit()
        self.rounds.append(dict(offsets))
        for queue in offsets:
            if queue in self.go_on:
                await self.go_on[queue].wait()
        return True


@dataclass
class _Group:
    """A group with assignments at the brokers in `addresses`."""

    clock: ManualClock
    store: _Store = field(default_factory=_Store)
    assigned: dict[MessageQueue, Any] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=lambda: {"a": "a:10911", "b": "b:10911"})
    owned: set[MessageQueue] = field(default_factory=lambda: {A, B})
    measured: list[MessageQueue] = field(default_factory=list)

    def assign(self, queue: MessageQueue, offset: int | None, *, is_releasing: bool = False) -> None:
        async def measure() -> None:
            self.measured.append(queue)

        self.assigned[queue] = SimpleNamespace(
            message_queue=queue,
            commit_offset=lambda: offset,
            is_releasing=is_releasing,
            measure=measure,
        )

    @property
    def context(self) -> GroupContext:
        routes = SimpleNamespace(
            by_endpoint=lambda queues: {queue.broker_name: [queue] for queue in queues}, address=self.addresses.get
        )
        context: Any = SimpleNamespace(
            clock=self.clock,
            options=group_options(),
            client=SimpleNamespace(routes=routes),
            store=self.store,
            ownership=SimpleNamespace(holds=self.owned.__contains__),
        )
        return cast(GroupContext, context)


@pytest.fixture
async def group() -> AsyncIterator[_Group]:
    """A group with running rounds of commits."""
    group = _Group(ManualClock())
    rounds = asyncio.create_task(OffsetPersistence(group.context, group.assigned).run())
    await asyncio.sleep(0)
    yield group
    rounds.cancel()
    await asyncio.wait((rounds,))


@pytest.mark.parametrize(("late_seconds", "doubts"), [(0.0, 0), (0.9, 0), (1.1, 1)])
async def test_a_late_round_checks_stored_offsets_before_it_commits(
    group: _Group, late_seconds: float, doubts: int
) -> None:
    await group.clock.advance(INTERVAL_SECONDS - 1.0)
    group.clock.turn(1.0 + late_seconds)
    await group.clock.advance(INTERVAL_SECONDS)
    assert group.store.doubts == doubts


async def test_a_round_is_late_after_the_machine_was_suspended(group: _Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock does not advance during a suspension."""
    await group.clock.advance(INTERVAL_SECONDS - 1.0)
    suspended = rmqd_clock.suspended_seconds() + 60.0
    monkeypatch.setattr("rmqd.consumer.offsets.persistence.suspended_seconds", lambda: suspended)
    await group.clock.advance(1.0)
    assert group.store.doubts == 1
    await group.clock.advance(INTERVAL_SECONDS)
    assert group.store.doubts == 1


async def test_a_round_commits_offsets_right_after_reading_them(group: _Group) -> None:
    """A later reset raises the queue's epoch, so it is not overwritten."""
    later: list[str] = []
    group.assign(A, 7)

    def commit_offset() -> int:
        asyncio.get_running_loop().call_soon(later.append, "reset")
        return 7

    group.assigned[A].commit_offset = commit_offset
    group.store.before_commit = lambda: later.append("commit")
    await group.clock.advance(INTERVAL_SECONDS)
    assert later == ["commit", "reset"]


async def test_pulls_carry_no_commits_after_a_late_step_between_rounds(group: _Group) -> None:
    """Two seconds after a step at the latest: a shorter time than other members wait."""
    for seconds in (0.0, 2.0, 0.5):
        await group.clock.advance(seconds)
        assert 1.0 < group.store.carries_until - group.clock.monotonic() <= 2.0


async def test_each_interval_commits_once(group: _Group) -> None:
    group.assign(A, 7)
    await group.clock.advance(3 * INTERVAL_SECONDS)
    assert group.store.rounds == [{A: 7}] * 3
    assert group.measured == [A] * 3


async def test_a_round_skips_queues_that_this_member_does_not_consume(group: _Group) -> None:
    """Queues that are not yet acquired, being released, or without their lock. All of them are measured."""
    not_yet, leaving, lost = (MessageQueue("orders", name, 0) for name in ("c", "d", "e"))
    group.addresses |= {"c": "c:10911", "d": "d:10911", "e": "e:10911"}
    group.owned |= {not_yet, leaving}
    group.assign(A, 0)
    group.assign(not_yet, None)
    group.assign(leaving, 7, is_releasing=True)
    group.assign(lost, 7)
    await group.clock.advance(INTERVAL_SECONDS)
    assert [each for each in group.store.rounds if each] == [{A: 0}]
    assert sorted(group.measured) == sorted([A, not_yet, leaving, lost])


async def test_a_slow_broker_delays_its_own_queues_only(group: _Group) -> None:
    group.assign(A, 7)
    group.assign(B, 8)
    group.store.go_on[A] = asyncio.Event()
    await group.clock.advance(3 * INTERVAL_SECONDS)
    assert sorted(map(list, group.store.rounds)) == [[A], [B], [B], [B]]
    group.store.go_on[A].set()
    await group.clock.advance(INTERVAL_SECONDS)
    assert group.store.rounds.count({A: 7}) == 2


async def test_a_round_skips_brokers_without_a_route(group: _Group) -> None:
    """Their commits could only fail."""
    group.assign(A, 7)
    group.assign(B, 8)
    del group.addresses["a"]
    await group.clock.advance(INTERVAL_SECONDS)
    assert group.store.rounds == [{B: 8}]


async def test_a_round_skips_idle_queues() -> None:
    """Until they have messages again, their offsets must be checked, or there is a new connection."""
    group, connections, idle = _Group(ManualClock()), {"a:10911": 1}, dict[MessageQueue, Any]()
    group.assign(A, 7)
    group.assigned[A].is_idle = lambda now: False
    group.assigned[A].measure = lambda: None
    group.store.committed, group.store.needs_commit = {A: 7}, lambda queue, offset: False
    context: Any = group.context
    context.client.remoting = SimpleNamespace(connected=connections.get)
    context.client.routes.broker_addresses = lambda: {"a:10911"}
    persistence = OffsetPersistence(context, group.assigned, idle)

    async def is_included() -> bool:
        group.store.rounds.clear()
        await persistence.commit_all()
        return group.store.rounds == [{A: 7}]

    assert await is_included()
    assert await is_included(), "it is not idle"
    group.assigned[A].is_idle = lambda now: True
    assert await is_included()
    assert not await is_included()
    connections["a:10911"] = 2
    assert await is_included(), "a broker that was restarted may have lost the commit"
    assert not await is_included()
    group.store.is_check_due = lambda: True
    assert await is_included(), "the group may have been deleted"
    group.store.is_check_due = lambda: False
    assert not await is_included()
    running = asyncio.create_task(persistence.run())
    await asyncio.sleep(0)
    group.clock.turn(INTERVAL_SECONDS + 1.0)
    await group.clock.until(lambda: group.store.doubts, "a step is late")
    running.cancel()
    await asyncio.wait((running,))
    assert not idle, "the process was suspended"
    assert await is_included()
    idle.pop(A)
    assert await is_included(), "it had messages"
    group.store.committed = {A: 6}
    idle.pop(A)
    assert await is_included()
    assert await is_included(), "its offset is not committed"


@pytest.mark.parametrize("change", ["released", "had a reset"])
async def test_a_check_skips_idle_queues_that_changed_during_the_round(change: str) -> None:
    """Another queue's commit at the same broker takes long."""
    group, idle, busy = _Group(ManualClock()), dict[MessageQueue, Any](), MessageQueue("orders", "a", 1)
    group.assign(A, 7)
    group.assign(busy, 8)
    group.owned.add(busy)
    group.store.committed, group.store.is_check_due = {A: 7, busy: 6}, lambda: True
    group.assigned[A].measure = group.assigned[busy].measure = lambda: None
    context: Any = group.context
    context.client.remoting = SimpleNamespace(connected=lambda address: None)
    context.client.routes.broker_addresses = lambda: ()
    context.client.routes.by_endpoint = lambda queues: {"a": list(queues)} if queues else {}
    persistence = OffsetPersistence(context, group.assigned, idle)
    await persistence.commit_all()  # the first round, with all queues
    idle[A] = None
    group.store.rounds.clear()
    group.store.go_on[busy] = asyncio.Event()
    a_round = asyncio.create_task(persistence.commit_all())
    await asyncio.sleep(0.01)
    assert group.store.rounds == [{busy: 8}]
    if change == "released":
        group.assigned[A].is_releasing = True
        del group.store.committed[A]
    else:
        idle.pop(A)
    group.store.go_on[busy].set()
    await a_round
    assert group.store.rounds == [{busy: 8}]
