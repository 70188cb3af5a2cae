"""`client.namespace_v2`: every request carries it, and nothing is renamed."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.remoting.security import Security
from rmqd.codes import RequestCode
from rmqd.runtime.clock import SystemClock
from rmqd.wire.acl import Credentials
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen

pytestmark = pytest.mark.usefixtures("hasty")


async def test_all_requests_carry_the_namespace(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    await broker.store(queue, b"0")
    options: dict[str, Any] = {"consume_mode": "orderly", "persist_consumer_offset_interval_seconds": 0.05}
    async with member(broker.peer.address, seen, namespace_v2="shop", **options):
        await seen.has(b"0")
        await broker.committed(GROUP, queue, 1)
    sent = {
        RequestCode(request.code): (request.ext_fields.get("nsd"), request.ext_fields.get("ns"))
        for request in broker.peer.requests
        if not request.is_response
    }
    assert {RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ} <= sent.keys()
    assert set(sent.values()) == {("true", "shop")}


async def test_without_a_namespace_no_request_has_the_fields(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen):
        await seen.has(b"0")
    assert not [request for request in broker.peer.requests if {"ns", "nsd"} & request.ext_fields.keys()]


def test_the_namespace_is_signed() -> None:
    options = ClientOptions(access_key="key", secret_key="secret", namespace_v2="shop")
    signed = Security(options, SystemClock()).signed({"topic": "t"})
    assert signed == Credentials("key", "secret", "").signed({"topic": "t", "nsd": "true", "ns": "shop"}, b"")
