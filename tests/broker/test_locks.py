"""Locks of queues, in the broker and by request."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmqd.broker.controller import LOCK_SECONDS, RebalanceLockManager
from rmqd.broker.embedded_rocketmq import EmbeddedRocketMQ, embedded_rocketmq
from rmqd.wire.bodies.group_bodies import LockBatchRequestBody, LockBatchResponseBody
from rmqd.wire.message_queue import MessageQueue
from tests.broker.peer import Peer, connected

LOCK, UNLOCK = 41, 42
Q0, Q1, ELSEWHERE = (MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1), MessageQueue("X", "other", 99))


class Time:
    """Monotonic seconds that tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def locks(time: Time) -> RebalanceLockManager:
    return RebalanceLockManager(time)


def test_queue_has_one_owner(locks: RebalanceLockManager) -> None:
    assert locks.lock("g", "one", [Q0, Q1]) == {Q0, Q1}
    assert locks.lock("g", "other", [Q0, Q1]) == set()
    assert locks.lock("g", "one", [Q0]) == {Q0}
    assert locks.lock("another group", "other", [Q0]) == {Q0}


def test_only_the_owner_can_unlock(locks: RebalanceLockManager) -> None:
    locks.lock("g", "one", [Q0, Q1])
    locks.unlock("g", "other", [Q0])
    assert locks.lock("g", "other", [Q0]) == set()
    locks.unlock("g", "one", [Q0, ELSEWHERE])
    assert locks.lock("g", "other", [Q0, Q1]) == {Q0}
    locks.unlock("never", "one", [Q0])


def test_a_lock_expires_unless_it_is_renewed(locks: RebalanceLockManager, time: Time) -> None:
    locks.lock("g", "one", [Q0, Q1])
    time.now += LOCK_SECONDS
    locks.lock("g", "one", [Q0])
    time.now += 0.1
    assert locks.lock("g", "other", [Q0, Q1]) == {Q1}
    time.now += LOCK_SECONDS
    assert locks.lock("g", "other", [Q0]) == {Q0}
    assert locks.lock("g", "one", [Q0]) == set()


def test_a_group_has_locks_until_they_expire_or_are_unlocked(locks: RebalanceLockManager, time: Time) -> None:
    """The broker turns retries of a group with locks into dead letters."""
    assert not locks.has_any("g")
    locks.lock("g", "one", [Q0])
    assert locks.has_any("g")
    assert not locks.has_any("h")
    time.now += LOCK_SECONDS + 0.1
    assert not locks.has_any("g")
    locks.lock("g", "one", [Q0])
    locks.unlock("g", "one", [Q0])
    assert not locks.has_any("g")


@pytest.fixture
async def rocketmq() -> AsyncIterator[EmbeddedRocketMQ]:
    async with embedded_rocketmq() as running:
        yield running


@pytest.fixture
async def peer(rocketmq: EmbeddedRocketMQ) -> AsyncIterator[Peer]:
    async with connected(rocketmq.broker.address) as connection:
        yield connection


async def ask(peer: Peer, code: int, client_id: str, *queues: MessageQueue, only_this_broker: bool = False) -> bytes:
    body = LockBatchRequestBody("g", client_id, queues, only_this_broker).to_json()
    reply = await peer.call(code, {}, body)
    assert (reply.code, reply.remark) == (0, None)
    return reply.body


async def test_locks_by_request(peer: Peer) -> None:
    """Also of queues that do not exist on this broker. The flag for clusters of several brokers changes nothing."""

    async def locked(client_id: str, *queues: MessageQueue, only_this_broker: bool = False) -> frozenset[MessageQueue]:
        body = await ask(peer, LOCK, client_id, *queues, only_this_broker=only_this_broker)
        return LockBatchResponseBody.from_json(body).queues

    assert await locked("one", Q0, ELSEWHERE) == {Q0, ELSEWHERE}
    assert await locked("other", Q0, Q1) == {Q1}
    assert await locked("other", Q0, only_this_broker=True) == set()
    assert await locked("other") == set()
    await ask(peer, UNLOCK, "other", Q0)
    assert await locked("other", Q0) == set()
    await ask(peer, UNLOCK, "one", Q0, only_this_broker=True)
    assert await locked("other", Q0) == {Q0}


@pytest.mark.parametrize("code", [LOCK, UNLOCK])
async def test_request_without_body_is_an_error(peer: Peer, code: int) -> None:
    assert (await peer.call(code)).code == 1
