"""A group whose keys are refused: it says so, loses nothing, and goes on with others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from rmqd.client.options import ClientOptions
from rmqd.client.remoting.client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api import Batch
from rmqd.wire.acl import SECRET_FIELDS, Credentials
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

OLD, NEW = Credentials("user", "old-secret"), Credentials("user", "new-secret")


def only(who: Credentials) -> Callable[[RemotingCommand], Reply | None]:
    """Access control that knows this user alone."""

    def gate(command: RemotingCommand) -> Reply | None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:  # name servers ask nobody
            return None
        fields = {name: value for name, value in command.ext_fields.items() if name not in SECRET_FIELDS}
        if who.signed(fields, command.body) == command.ext_fields:
            return None
        return Reply(ResponseCode.NO_PERMISSION, "check signature failed.")

    return gate


def options(who: Credentials) -> ClientOptions:
    """A client's, with these keys."""
    return ClientOptions(access_key=who.access_key, secret_key=who.secret_key)


async def test_a_secret_that_is_replaced_under_load_costs_nothing(broker: ScriptedBroker) -> None:
    """What was handled while the old one was refused is committed by the new one, and nothing comes twice."""
    queue, other = broker.create_topic(TOPIC, 2)
    bodies: list[bytes] = []
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        bodies.extend(message.body for message in batch)
        await release.wait()

    broker.peer.gate = only(OLD)
    remoting = RemotingClient(options(OLD))
    with capture_logs() as logs:
        async with member(
            broker.peer.address, handle, remoting=remoting, persist_consumer_offset_interval_seconds=0.05
        ) as m:
            await broker.store(queue, b"before")
            await eventually(lambda: bodies == [b"before"], "the handler has the message")
            broker.peer.gate = only(NEW)
            release.set()
            await eventually(lambda: not m.consumer.snapshot().ready, "the group is not ready")
            reason = m.consumer.snapshot().not_ready_reason
            assert reason is not None
            assert f"group {GROUP} is kept from consuming: {broker.peer.address} refuses access" in reason
            assert (GROUP, queue) not in broker.offsets or broker.offsets[GROUP, queue] == 0
            m.client.secure(options(NEW))
            await eventually(lambda: broker.offsets.get((GROUP, queue)) == 1, "what was handled is committed")
            await broker.store(other, b"after")
            await eventually(lambda: bodies == [b"before", b"after"], "the next message is handled")
            assert m.consumer.snapshot().ready
            assert m.consumer.snapshot().rebalances <= 2
            await m.stop()
    told = [entry for entry in logs if entry["log_level"] in ("warning", "error")]
    assert [entry["event"] for entry in told] == ["access.refused"]
    assert "old-secret" not in str(logs)


@pytest.mark.usefixtures("unpaced")
async def test_a_group_that_starts_with_wrong_keys_begins_once_they_are_right(broker: ScriptedBroker) -> None:
    """Without being started again."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"waiting")
    bodies: list[bytes] = []

    async def handle(batch: Batch) -> None:
        bodies.append(batch[0].body)

    broker.peer.gate = only(NEW)
    remoting = RemotingClient(options(OLD))
    async with member(broker.peer.address, handle, remoting=remoting) as m:
        await eventually(
            lambda: "client.secret_key is not the one" in (m.consumer.snapshot().not_ready_reason or ""), "it says why"
        )
        m.client.secure(options(NEW))
        await eventually(lambda: bodies == [b"waiting"], "the message is handled")
        assert m.consumer.snapshot().ready
        await m.stop()


async def test_a_topic_that_is_forbidden_keeps_its_group_from_being_ready(broker: ScriptedBroker) -> None:
    """Others of the same group go on."""
    broker.create_topic("forbidden")
    [allowed] = broker.create_topic("allowed")
    bodies: list[bytes] = []

    async def handle(batch: Batch) -> None:
        bodies.append(batch[0].body)

    def gate(command: RemotingCommand) -> Reply | None:
        if command.code == RequestCode.PULL_MESSAGE and command.ext_fields["topic"] == "forbidden":
            remark = "User:user has no permission to access Topic:forbidden from 10.0.0.9, no matched policies."
            return Reply(ResponseCode.NO_PERMISSION, remark)
        return None

    broker.peer.gate = gate
    async with member(broker.peer.address, handle, subscriptions=["forbidden", "allowed"]) as m:
        await broker.store(allowed, b"x")
        await eventually(lambda: bodies == [b"x"], "the other topic is consumed")
        await eventually(lambda: not m.consumer.snapshot().ready, "the group is not ready")
        assert "Topic:forbidden" in (m.consumer.snapshot().not_ready_reason or "")
        await m.stop()
