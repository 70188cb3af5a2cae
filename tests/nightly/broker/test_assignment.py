"""Queue assignments of the embedded broker, for pull and for pop, as in 5.5.0."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ
from rmqd.broker.processors.assignment_processor import allocate_for_pop, averagely, averagely_by_circle
from rmqd.wire.bodies.config_bodies import SetMessageRequestModeRequestBody
from rmqd.wire.bodies.pop_bodies import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from rmqd.wire.message_queue import MessageQueue
from tests.broker.beats import beat, consumer
from tests.broker.peer import Peer, connected

QUERY_ASSIGNMENT, SET_MODE = 400, 401
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]


async def assigned(peer: Peer, client_id: str, topic: str = "T", **changed: Any) -> QueryAssignmentResponseBody:
    body = QueryAssignmentRequestBody(topic, "g", client_id, **changed)
    reply = await peer.call(QUERY_ASSIGNMENT, {}, body.to_json())
    assert (reply.code, reply.remark) == (0, None)
    return QueryAssignmentResponseBody.from_json(reply.body)


def queues(body: QueryAssignmentResponseBody, mode: MessageRequestMode) -> list[int]:
    assert body.assignments is not None
    assert {each.mode for each in body.assignments} <= {mode}
    return [each.queue.queue_id for each in body.assignments]


async def test_members_pull_their_shares_by_default(embedded: EmbeddedRocketMQ, peer: Peer) -> None:
    await beat(peer, "one", consumer("g"))
    async with connected(embedded.broker.address) as other:
        await beat(other, "two", consumer("g"))

        assert queues(await assigned(peer, "one"), MessageRequestMode.PULL) == [0, 1]
        assert queues(await assigned(other, "two"), MessageRequestMode.PULL) == [2, 3]
        circle = await assigned(other, "two", strategy_name="AVG_BY_CIRCLE")
        assert queues(circle, MessageRequestMode.PULL) == [1, 3]


async def test_members_that_pop_share_all_queues(peer: Peer) -> None:
    await beat(peer, "one", consumer("g"))
    await peer.call(SET_MODE, {}, SetMessageRequestModeRequestBody("T", "g", "POP", 0).to_json())

    body = await assigned(peer, "one")

    assert body.assignments == (MessageQueueAssignment(MessageQueue("T", "broker-a", -1), MessageRequestMode.POP),)
    await peer.call(SET_MODE, {}, SetMessageRequestModeRequestBody("T", "g", "PULL").to_json())
    assert queues(await assigned(peer, "one"), MessageRequestMode.PULL) == [0, 1, 2, 3]


async def test_the_retry_topic_is_always_pulled(peer: Peer) -> None:
    await beat(peer, "one", consumer("g"))
    await peer.call(SET_MODE, {}, SetMessageRequestModeRequestBody("T", "g", "POP", 0).to_json())

    assert queues(await assigned(peer, "one", "%RETRY%g"), MessageRequestMode.PULL) == [0]


async def test_broadcasting_members_get_all_queues(peer: Peer) -> None:
    assert queues(await assigned(peer, "one", message_model="BROADCASTING"), MessageRequestMode.PULL) == [0, 1, 2, 3]


async def test_an_unknown_assignment_is_left_out_of_the_response(peer: Peer) -> None:
    """The member then keeps its assignments."""
    assert (await assigned(peer, "one")).assignments is None
    await beat(peer, "one", consumer("g"))
    assert (await assigned(peer, "one", "unknown")).assignments is None
    assert (await assigned(peer, "one", strategy_name="CONSISTENT_HASH")).assignments is None


async def test_a_client_outside_the_group_gets_no_queues(peer: Peer) -> None:
    await beat(peer, "one", consumer("g"))

    assert (await assigned(peer, "stranger")).assignments == ()


@pytest.mark.parametrize(
    ("members", "share", "expected"),
    [
        (1, 1, [-1]),
        (4, -1, [-1]),
        (4, 0, [-1]),
        (4, 3, [-1]),
        (4, 1, [1, 2]),
        (4, 2, [1, 2, 3]),
        (6, 1, [1]),
    ],
)
def test_a_member_pops_its_share_of_the_queues(members: int, share: int, expected: list[int]) -> None:
    """Queues of the second member: its own, and the queues of the next `share` members in a ring."""
    names = [f"c{number}" for number in range(members)]

    own = allocate_for_pop(averagely, names[min(1, members - 1)], QUEUES, names, share)

    assert sorted(queue.queue_id for queue in own) == expected


def test_the_last_member_shares_with_the_first() -> None:
    own = allocate_for_pop(averagely, "c3", QUEUES, ["c0", "c1", "c2", "c3"], 1)

    assert sorted(queue.queue_id for queue in own) == [0, 3]


def test_more_members_than_queues_get_one_each() -> None:
    names = [f"c{number}" for number in range(6)]
    owned = [allocate_for_pop(averagely_by_circle, name, QUEUES, names, 1) for name in names]

    assert [[queue.queue_id for queue in own] for own in owned] == [[0], [1], [2], [3], [0], [1]]
    assert allocate_for_pop(averagely, "stranger", QUEUES, names, 1) == set()


async def test_the_response_has_the_same_json_as_in_java(peer: Peer) -> None:
    await beat(peer, "one", consumer("g"))
    await peer.call(SET_MODE, {}, SetMessageRequestModeRequestBody("T", "g", "POP", 0).to_json())

    reply = await peer.call(QUERY_ASSIGNMENT, {}, QueryAssignmentRequestBody("T", "g", "one").to_json())

    queue = {"brokerName": "broker-a", "queueId": -1, "topic": "T"}
    assert json.loads(reply.body) == {"messageQueueAssignments": [{"messageQueue": queue, "mode": "POP"}]}
