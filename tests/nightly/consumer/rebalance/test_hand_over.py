"""A queue moves between members: when the new owner begins, what the old one commits, and who is waited for."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.rebalance.test_hand_over import QUEUES, Ledger, owners
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("unpaced")


async def test_a_killed_members_locks_are_broken(broker: ScriptedBroker, flowing: ManualClock) -> None:
    """By those who saw it, for whoever takes its queues: nobody waits for it."""
    broker.create_topic(TOPIC, 6)
    ledger = Ledger()
    async with (
        member(broker.peer.address, ledger, clock=flowing) as first,
        member(broker.peer.address, ledger, clock=flowing) as killed,
    ):
        await eventually(lambda: owners(first, killed) == [3, 3], "both have their share")
        await killed.die()
        killed_id = killed.client.client_id
        assert killed_id in broker.locks.values()
        # its replacement is there before anybody noticed that it has gone
        async with member(broker.peer.address, ledger, clock=flowing) as third:
            await broker.lose(killed_id)
            await eventually(lambda: owners(first, third) == [3, 3], "both have their share")
            assert first.consumer.snapshot().handover_timeouts == third.consumer.snapshot().handover_timeouts == 0
            assert killed_id not in broker.locks.values()


async def test_a_broker_that_refuses_locks_leaves_the_bounded_wait(
    broker: ScriptedBroker, flowing: ManualClock
) -> None:
    """Said once, not asked in circles; the members go on as if the time had passed."""
    broker.peer.on(RequestCode.LOCK_BATCH_MQ, Reply(ResponseCode.NO_PERMISSION, "no sub permission on the group"))
    broker.create_topic(TOPIC, 2)
    with capture_logs() as logs:
        async with member(broker.peer.address, Ledger(), clock=flowing) as old:
            await eventually(lambda: owners(old) == [2], "alone it waits for nobody")
            async with member(broker.peer.address, Ledger(), clock=flowing, queue_handover_timeout_seconds=6.0) as new:
                asked = len(broker.peer.got(RequestCode.LOCK_BATCH_MQ))
                begin = flowing.now
                await eventually(lambda: owners(old, new) == [1, 1], "both have their share")
                assert flowing.now - begin > 5
                assert len(broker.peer.got(RequestCode.LOCK_BATCH_MQ)) - asked < 10
    refusals = [entry for entry in logs if entry["event"] == "ownership.lock_refused"]
    assert len(refusals) == 2, "once for each member"
    assert refusals[0]["lock"] == f"{GROUP}-rmqd-owner"


async def test_where_brokers_tell_nobody_a_joining_member_is_seen_all_the_same(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner looks at the list of members itself. Its time to finish begins when it must have seen it."""
    monkeypatch.setattr("rmqd.consumer.rebalance.membership.POLL_SECONDS", 0.2)
    broker.notifies = False
    queues = broker.create_topic(TOPIC, QUEUES)
    for queue in queues:
        await broker.store(queue, *[b"x"] * 100)
    ledger = Ledger(0.03)
    times: dict[str, Any] = {"queue_handover_timeout_seconds": 1.0, "persist_consumer_offset_interval_seconds": 60.0}
    async with member(broker.peer.address, ledger, **times) as old:
        await eventually(lambda: len(ledger.finished) > 20, "the old owner is at work")
        async with member(broker.peer.address, ledger, **times) as new:
            await eventually(lambda: owners(old, new) == [2, 2], "both have their share")
            assert new.consumer.snapshot().handover_timeouts == 0
            await eventually(lambda: len(ledger.finished) == 100 * QUEUES, "all is handled")
    assert set(ledger.finished.values()) == {1}
