"""A queue moves between members: broken locks, refused locks, and missing notifications."""

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


async def test_a_killed_members_locks_are_released(broker: ScriptedBroker, flowing: ManualClock) -> None:
    """By a member that saw it, for the new owners of its queues. No member waits for it."""
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
        # its replacement joins before the loss is noticed
        async with member(broker.peer.address, ledger, clock=flowing) as third:
            await broker.lose(killed_id)
            await eventually(lambda: owners(first, third) == [3, 3], "both have their share")
            assert first.consumer.snapshot().handover_timeouts == third.consumer.snapshot().handover_timeouts == 0
            assert killed_id not in broker.locks.values()


async def test_a_hand_over_waits_for_its_timeout_if_the_broker_refuses_locks(
    broker: ScriptedBroker, flowing: ManualClock
) -> None:
    """The refusal is logged once for each member, and locks are not requested in a tight loop."""
    broker.peer.on(RequestCode.LOCK_BATCH_MQ, Reply(ResponseCode.NO_PERMISSION, "no sub permission on the group"))
    broker.create_topic(TOPIC, 2)
    with capture_logs() as logs:
        async with member(broker.peer.address, Ledger(), clock=flowing) as old:
            await eventually(lambda: owners(old) == [2], "a single member does not wait")
            async with member(broker.peer.address, Ledger(), clock=flowing, queue_handover_timeout_seconds=6.0) as new:
                asked = len(broker.peer.got(RequestCode.LOCK_BATCH_MQ))
                begin = flowing.now
                await eventually(lambda: owners(old, new) == [1, 1], "both have their share")
                assert flowing.now - begin > 5
                assert len(broker.peer.got(RequestCode.LOCK_BATCH_MQ)) - asked < 10
    refusals = [entry for entry in logs if entry["event"] == "ownership.lock_refused"]
    assert len(refusals) == 2, "once for each member"
    assert refusals[0]["lock"] == f"{GROUP}-rmqd-owner"


async def test_a_joining_member_is_seen_even_if_brokers_do_not_notify(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner polls the list of members. Its drain time begins when it must have seen the new member."""
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
