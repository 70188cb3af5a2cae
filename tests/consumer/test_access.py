"""Groups with refused access keys or forbidden topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api.batch import Batch
from rmqd.wire.acl import SECRET_FIELDS, Credentials
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Reply
from tests.consumer.groups import TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

OLD, NEW = Credentials("user", "old-secret"), Credentials("user", "new-secret")


def only(who: Credentials) -> Callable[[RemotingCommand], Reply | None]:
    """Access control that accepts only this user."""

    def gate(command: RemotingCommand) -> Reply | None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:  # name servers check no keys
            return None
        fields = {name: value for name, value in command.ext_fields.items() if name not in SECRET_FIELDS}
        if who.signed(fields, command.body) == command.ext_fields:
            return None
        return Reply(ResponseCode.NO_PERMISSION, "check signature failed.")

    return gate


def options(who: Credentials) -> ClientOptions:
    """The options of a client with these keys."""
    return ClientOptions(access_key=who.access_key, secret_key=who.secret_key)


@pytest.mark.usefixtures("unpaced")
async def test_a_group_with_wrong_keys_consumes_once_they_are_corrected(broker: ScriptedBroker) -> None:
    """The group needs no restart."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"waiting")
    bodies: list[bytes] = []

    async def handle(batch: Batch) -> None:
        bodies.append(batch[0].body)

    broker.peer.gate = only(NEW)
    remoting = RemotingClient(options(OLD))
    async with member(broker.peer.address, handle, remoting=remoting) as m:
        await eventually(
            lambda: "client.secret_key does not match" in (m.consumer.snapshot().not_ready_reason or ""), "the reason"
        )
        m.client.update_security(options(NEW))
        await eventually(lambda: bodies == [b"waiting"], "the message is handled")
        assert m.consumer.snapshot().ready
        await m.stop()


async def test_a_group_with_a_forbidden_topic_is_not_ready(broker: ScriptedBroker) -> None:
    """The group's other topics are consumed."""
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
