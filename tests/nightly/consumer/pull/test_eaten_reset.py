"""An operator's reset that the broker reported to an abandoned pull."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("unpaced")

PULL = RequestCode.PULL_MESSAGE
BODIES = [b"%d" % number for number in range(6)]


async def test_a_reset_lost_on_a_dead_connection_is_seen_in_the_stored_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, flowing: ManualClock
) -> None:
    """The member was restarted a moment ago, and has no new message to commit."""
    await broker.store(queue, *BODIES)
    broker.offsets[GROUP, queue] = 6
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [6], "it waits for messages")
        broker.offsets[GROUP, queue] = 0
        await seen.has(*BODIES)
        await broker.committed(GROUP, queue, 6)
        assert m.topic().falls["operator"] == 1


async def test_a_commit_of_another_member_is_not_a_reset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, flowing: ManualClock
) -> None:
    """It may come late and lower the committed offset, but not below the start of this ownership."""
    await broker.store(queue, *BODIES)
    broker.offsets[GROUP, queue] = 2
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await broker.committed(GROUP, queue, 6)
        broker.offsets[GROUP, queue] = 3
        await broker.store(queue, b"more")
        await broker.committed(GROUP, queue, 7)
        assert m.topic().falls["operator"] == 0


async def test_a_reset_in_a_late_response_to_an_earlier_ownerships_pull_is_applied(
    broker: ScriptedBroker, seen: Seen, flowing: ManualClock
) -> None:
    """The queue was released meanwhile, and acquired here again."""
    queues = broker.create_topic(TOPIC, 2)
    moving = queues[1]
    await broker.store(moving, *BODIES)
    broker.offsets[GROUP, moving] = 6
    reset = asyncio.Event()

    async def held() -> Reply:
        await reset.wait()
        return broker.nothing(moving, ResponseCode.PULL_OFFSET_MOVED, 3, "OFFSET_RESET")

    serve = broker._pull
    first: list[RemotingCommand] = []

    async def pull(command: RemotingCommand) -> Reply | None:
        if (command.ext_fields["topic"], command.ext_fields["queueId"]) == (TOPIC, "1") and not first:
            first.append(command)
            return await held()
        return await serve(command)

    broker.peer.on(PULL, pull)
    async with member(broker.peer.address, seen, clock=flowing) as m:
        await eventually(lambda: first, "a pull is held")
        broker.create_topic(TOPIC, 1)
        await m.client.routes.refresh(TOPIC)
        await eventually(lambda: m.owned() == {(TOPIC, 0)}, "the queue is released")
        broker.create_topic(TOPIC, 2)
        await m.client.routes.refresh(TOPIC)
        await eventually(lambda: 6 in broker.pulled_offsets(moving), "it is acquired again")
        reset.set()
        await seen.has(*BODIES[3:])
        await broker.committed(GROUP, moving, 6)
