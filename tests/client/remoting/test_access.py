"""Refused access keys and permissions: error texts, log events, and the end of a refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from rmqd.client.api.remoting_request import request
from rmqd.client.client_options import ClientOptions
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.remoting.security import FORGET_PERMISSION_REFUSAL_SECONDS
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors.broker_errors import AccessRefusedError, NoPermissionError
from rmqd.wire.acl import Credentials
from tests.client.peer import Peer, Reply
from tests.clock import ManualClock

PULL, BEAT, VIEW = RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_CONNECTION_LIST
KEYS = ClientOptions(access_key="the-user", secret_key="the-secret", security_token="the-token")
WRONG = Reply(ResponseCode.NO_PERMISSION, "check signature failed.")
ACL_1 = "org.apache.rocketmq.acl.common.AclException:"
FORBIDDEN = "User:the-user has no permission to access Topic:orders from 10.0.0.9, no matched policies."


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def client(clock: ManualClock) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(KEYS, clock)
    yield client
    await client.close()


@pytest.mark.parametrize(
    ("code", "remark", "advice"),
    [
        (16, "username cannot be null.", "set client.access_key and client.secret_key"),
        (16, "User:the-user is not found.", "the server does not know this client.access_key"),
        (16, "User:the-user is disabled.", "the cluster's administrator can enable the user"),
        (16, "check signature failed.", "client.secret_key does not match client.access_key"),
        (16, FORBIDDEN, r"PULL_MESSAGE .* action Sub: `mqadmin createAcl -s User:USER -r Topic:orders -a Sub,Get"),
        (16, "Authentication failed. Please verify the credentials and try again.", "check client.access_key"),
        (
            1,
            f"{ACL_1} No accessKey is configured, org.apache.rocketmq.acl.x",
            "set client.access_key",
        ),
        (
            1,
            f"{ACL_1} No acl config for the-user, org.apache.rocketmq.acl.x",
            "the server does not know",
        ),
        (
            1,
            f"{ACL_1} Check signature failed for accessKey=the-user",
            "does not match",
        ),
        (
            1,
            f"{ACL_1} No default permission for T1, org.apache.rocketmq.acl.x",
            "can permit it",
        ),
        (1, f"{ACL_1} something new", "check client.access_key"),
        (16, "the security token is expired", "replace client.security_token and its keys"),
    ],
)
async def test_a_refusal_names_the_next_step_and_no_secrets(
    client: RemotingClient, peer: Peer, code: int, remark: str, advice: str
) -> None:
    """The first six remarks are from RocketMQ 5, the next five from RocketMQ 4."""
    peer.on(PULL, Reply(code, remark))
    with pytest.raises(AccessRefusedError, match=advice) as caught:
        await request(client, peer.address, PULL)
    assert caught.value.is_reported
    assert isinstance(caught.value, NoPermissionError)
    assert peer.address in str(caught.value)
    assert "org.apache" not in str(caught.value)
    shown = f"{caught.value} {caught.value.remark} {client.security.refusals.current}"
    assert not any(secret in shown for secret in ("the-user", "the-secret", "the-token"))


@pytest.mark.parametrize(
    ("code", "resource", "action"),
    [
        (RequestCode.GET_MIN_OFFSET, "Group:mailer", "Get"),
        (RequestCode.QUERY_CONSUMER_OFFSET, "Group:mailer", "Sub"),
        (RequestCode.SEND_MESSAGE_V2, "Topic:%DLQ%mailer", "Pub"),
        (RequestCode.SEND_MESSAGE_V2, "Group:mailer", "Sub"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, "Topic:orders", "Create"),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, "Group:mailer", "Update"),
        (RequestCode.DELETE_TOPIC_IN_BROKER, "Topic:orders", "Delete"),
    ],
)
async def test_a_permission_error_names_the_request_and_the_missing_action(
    client: RemotingClient, peer: Peer, code: RequestCode, resource: str, action: str
) -> None:
    """A user with another action on the same resource would take "no permission" for a fault of the broker."""
    peer.on(code, Reply(16, f"User:u has no permission to access {resource} from 10.0.0.9, no matched policies."))
    with pytest.raises(AccessRefusedError, match=rf"refuses {code.name} .* action {action}: .* -r {resource} "):
        await request(client, peer.address, code)


async def test_any_other_response_ends_a_refusal(client: RemotingClient, peer: Peer) -> None:
    """Even an error response shows that the server accepts the keys."""
    refusals = client.security.refusals
    peer.on(PULL, WRONG)
    await client.invoke(peer.address, PULL, {})
    assert "check signature failed" in (refusals.reason_for_group(["any"]) or "")
    peer.on(BEAT, Reply(ResponseCode.SYSTEM_ERROR, "something else"))
    with capture_logs() as logs:
        await client.invoke(peer.address, BEAT, {})
        await client.invoke(peer.address, BEAT, {})
    assert refusals.reason_for_group(["any"]) is None
    assert [entry["event"] for entry in logs] == ["access.restored"]


async def test_a_forbidden_topic_concerns_only_its_groups(
    client: RemotingClient, peer: Peer, clock: ManualClock
) -> None:
    """The refusal is forgotten when it was not repeated for FORGET_PERMISSION_REFUSAL_SECONDS."""
    refusals = client.security.refusals
    peer.on(PULL, Reply(ResponseCode.NO_PERMISSION, FORBIDDEN))
    await client.invoke(peer.address, PULL, {})
    await client.invoke(peer.address, BEAT, {})
    assert "Topic:orders" in (refusals.reason_for_group(["mailer", "orders"]) or "")
    assert refusals.reason_for_group(["mailer", "invoices", "orders-2", "order"]) is None
    clock.turn(FORGET_PERMISSION_REFUSAL_SECONDS + 1)
    assert refusals.reason_for_group(["orders"]) is None


async def test_new_keys_are_used_from_the_next_request(client: RemotingClient, peer: Peer) -> None:
    """The connection stays open, and a refusal of the new keys is logged at once."""
    peer.on(PULL, WRONG)
    with capture_logs() as logs:
        await client.invoke(peer.address, PULL, {"n": "1"})
        client.secure(ClientOptions(access_key="another", secret_key="another-secret"))
        assert client.security.refusals.reason_for_group(["any"]) is None
        await client.invoke(peer.address, PULL, {"n": "1"})
    old, new = (command.ext_fields for command in peer.got(PULL))
    assert old == Credentials("the-user", "the-secret", "the-token").signed({"n": "1"}, b"")
    assert new == Credentials("another", "another-secret").signed({"n": "1"}, b"")
    assert [entry["event"] for entry in logs] == ["access.refused"] * 2
    assert peer.connections == 1


async def test_without_keys_nothing_is_signed(peer: Peer) -> None:
    client = RemotingClient()
    await client.invoke(peer.address, PULL, {"n": "1"})
    assert peer.got(PULL)[0].ext_fields == {"n": "1"}
    await client.close()
