"""Servers that refuse access: reported with the reason, logged once a minute, and cleared when it ends."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from rmqd.client.api.remoting_request import request
from rmqd.client.client_options import ClientOptions
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.remoting.security import FORGET_TRUST_REFUSAL_SECONDS
from rmqd.codes import ResponseCode
from rmqd.errors.broker_errors import AccessRefusedError, BrokerError
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Peer, Reply
from tests.client.remoting.test_access import FORBIDDEN, PULL, VIEW, WRONG, client, clock
from tests.clock import ManualClock

__all__ = ["client", "clock"]

UNKNOWN = Reply(ResponseCode.NO_PERMISSION, "User:the-user is not found.")


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (16, "the topic[orders] pulling message is forbidden"),
        (16, "subscription group no permission, mailer"),
        (1, "java.lang.NullPointerException: User: is disabled"),
    ],
)
async def test_other_errors_are_not_refusals_of_access(
    client: RemotingClient, peer: Peer, code: int, remark: str
) -> None:
    peer.on(PULL, Reply(code, remark))
    with pytest.raises(BrokerError) as caught:
        await request(client, peer.address, PULL)
    assert not isinstance(caught.value, AccessRefusedError)
    assert client.security.refusals.reason_for_group(["mailer", "orders"]) is None


async def test_refusals_of_several_servers_are_logged_in_one_line_a_minute(
    client: RemotingClient, peer: Peer, clock: ManualClock
) -> None:
    async with Peer() as other:
        peer.on(PULL, WRONG)
        other.on(PULL, UNKNOWN)
        with capture_logs() as logs:
            for seconds in (0, 1, 58, 1, 1):
                clock.turn(seconds)
                for address in (peer.address, other.address):
                    await client.invoke(address, PULL, {})
        first, second = (entry for entry in logs if entry["event"] == "access.refused")
        assert (first["log_level"], first["again_in_seconds"]) == ("error", 60)
        assert peer.address in first["reason"]
        assert peer.address in second["reason"]
        assert f"{other.address} refuses access (User:*** is not found)" in second["reason"]


async def test_the_refusal_of_an_optional_request_is_not_reported(client: RemotingClient, peer: Peer) -> None:
    """Queries about other members need more permissions than consuming."""
    peer.on(VIEW, Reply(ResponseCode.NO_PERMISSION, FORBIDDEN))
    with capture_logs() as logs:
        await client.invoke(peer.address, VIEW, {})
    assert (logs, client.security.refusals.current) == ([], {})


async def test_the_refusal_of_a_needed_request_is_reported(client: RemotingClient, peer: Peer) -> None:
    """For example, a group that starts at the end of a queue needs the queue's maximum offset."""
    peer.on(VIEW, Reply(ResponseCode.NO_PERMISSION, FORBIDDEN))
    with pytest.raises(AccessRefusedError) as caught:
        await request(client, peer.address, VIEW)
    client.security.refusals.record_needed_request(caught.value)
    assert client.security.refusals.reason_for_group(["orders"]) == str(caught.value)


async def test_the_refusal_of_a_removed_server_expires(client: RemotingClient, peer: Peer, clock: ManualClock) -> None:
    """No later request to the server can clear the refusal."""
    peer.on(PULL, WRONG)
    await client.invoke(peer.address, PULL, {})
    clock.turn(FORGET_TRUST_REFUSAL_SECONDS)
    assert client.security.refusals.reason_for_group(["any"])
    clock.turn(1)
    assert client.security.refusals.reason_for_group(["any"]) is None


async def test_refusals_of_old_keys_do_not_count_for_new_keys(client: RemotingClient, peer: Peer) -> None:
    """They may arrive after the change. The user name in their remarks stays hidden."""
    asked, release, refusals = asyncio.Event(), asyncio.Event(), client.security.refusals

    async def late(command: RemotingCommand) -> Reply:
        asked.set()
        await release.wait()
        return UNKNOWN

    peer.on(PULL, late)
    with capture_logs() as logs:
        pulling = asyncio.create_task(client.invoke(peer.address, PULL, {}))
        await asked.wait()
        client.secure(ClientOptions(access_key="another", secret_key="another-secret"))
        release.set()
        answer = await pulling
        assert (logs, refusals.reason_for_group(["any"])) == ([], None)
        peer.on(PULL, WRONG)
        await client.invoke(peer.address, PULL, {})
    assert answer.remark == "User:*** is not found."
    assert "check signature failed" in (refusals.reason_for_group(["any"]) or "")
    assert [entry["event"] for entry in logs] == ["access.refused"]
