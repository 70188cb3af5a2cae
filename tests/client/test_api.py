"""The requests one by one: their fields, the decoded responses, and the errors of refusals."""

from __future__ import annotations

import pytest

from rmqd.client.api import admin_requests as admin
from rmqd.client.api import group_requests as group
from rmqd.client.api import group_requests as lock
from rmqd.client.api import offset_requests as offset
from rmqd.client.api.send_requests import send_message_back
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.name_server_client import get_route
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ProtocolError, RemotingTimeoutError
from rmqd.errors.broker_errors import (
    BrokerError,
    QueryNotFoundError,
    SubscriptionGroupNotExistError,
)
from rmqd.wire.bodies.group_bodies import LockBatchRequestBody, LockBatchResponseBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import StoredMessage, encode_message
from tests.client.peer import Peer, Reply

QUEUE = MessageQueue("T", "broker-a", 3)


def fields_of(peer: Peer, code: RequestCode) -> dict[str, str]:
    """The ext fields of the one request with this code."""
    (request,) = peer.got(code)
    return request.ext_fields


async def test_a_route_is_requested_in_strict_json(remoting: RemotingClient, peer: Peer) -> None:
    """Old name servers return strict JSON only on request."""
    with pytest.raises(ProtocolError):
        await get_route(remoting, peer.address, "T")  # an empty body is not a route
    fields = fields_of(peer, RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert fields == {"topic": "T", "acceptStandardJsonOnly": "true"}


async def test_a_missing_committed_offset_is_none(remoting: RemotingClient, peer: Peer) -> None:
    """The broker must report a missing offset instead of returning 0. Other errors are raised."""
    code = RequestCode.QUERY_CONSUMER_OFFSET
    peer.on(code, Reply(ext_fields={"offset": "42"}))
    assert await offset.query_consumer_offset(remoting, peer.address, "g", QUEUE) == 42
    assert fields_of(peer, code) == {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "3",
        "setZeroIfNotFound": "false",
        "bname": "broker-a",
    }
    peer.on(code, Reply(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"))
    assert await offset.query_consumer_offset(remoting, peer.address, "g", QUEUE) is None
    peer.on(code, Reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST))
    with pytest.raises(SubscriptionGroupNotExistError):
        await offset.query_consumer_offset(remoting, peer.address, "g", QUEUE)


async def test_a_refused_or_unanswered_commit_raises_an_error(remoting: RemotingClient, peer: Peer) -> None:
    """Java's one-way request does not report them."""
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    await offset.update_consumer_offset(remoting, peer.address, "g", QUEUE, 9)
    assert fields_of(peer, code)["commitOffset"] == "9"
    assert not peer.got(code)[0].is_oneway
    peer.on(code, Reply(ResponseCode.TOPIC_NOT_EXIST, "gone"))
    with pytest.raises(BrokerError) as raised:
        await offset.update_consumer_offset(remoting, peer.address, "g", QUEUE, 9)
    assert (raised.value.code, raised.value.remark, raised.value.address) == (17, "gone", peer.address)
    assert raised.value.stale_route
    peer.on(code, None)
    with pytest.raises(RemotingTimeoutError):
        await offset.update_consumer_offset(remoting, peer.address, "g", QUEUE, 9, timeout_seconds=0.05)


async def test_the_offsets_of_a_queue(remoting: RemotingClient, peer: Peer) -> None:
    """Maximum, minimum, the offset of a time, and the oldest store time, which is None for an empty queue."""
    for code, value in (
        (RequestCode.GET_MAX_OFFSET, "10"),
        (RequestCode.GET_MIN_OFFSET, "2"),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "5"),
    ):
        peer.on(code, Reply(ext_fields={"offset": value}))
    assert await offset.get_max_offset(remoting, peer.address, QUEUE) == 10
    assert await offset.get_min_offset(remoting, peer.address, QUEUE) == 2
    assert await offset.search_offset(remoting, peer.address, QUEUE, 1700000000000) == 5
    fields = fields_of(peer, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    assert (fields["timestamp"], fields["boundaryType"]) == ("1700000000000", "lower")
    peer.on(RequestCode.GET_EARLIEST_MSG_STORETIME, Reply(ext_fields={"timestamp": "-1"}))
    assert await offset.earliest_store_time(remoting, peer.address, QUEUE) is None
    peer.on(RequestCode.GET_EARLIEST_MSG_STORETIME, Reply(ext_fields={"timestamp": "1700000000000"}))
    assert await offset.earliest_store_time(remoting, peer.address, QUEUE) == 1700000000000


STORED_AT = (10, 20, 20, 20, 40)


@pytest.mark.parametrize(
    ("time", "nearest", "first"), [(5, 0, 0), (20, 2, 1), (25, 3, 4), (35, 4, 4), (50, 4, 5), (60, 5, 5)]
)
async def test_search_offset_finds_the_first_message_at_older_brokers(
    remoting: RemotingClient, peer: Peer, time: int, nearest: int, first: int
) -> None:
    """Older brokers return the nearest message; its store time shows whether it precedes the given time."""

    def pull(command: RemotingCommand) -> Reply:
        at = int(command.ext_fields["queueOffset"])
        ends = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(at + 1), "minOffset": "0", "maxOffset": "5"}
        if at == len(STORED_AT):
            return Reply(ResponseCode.PULL_NOT_FOUND, "", ends)
        return Reply(
            0,
            "FOUND",
            ends,
            encode_message(
                StoredMessage(topic="T", body=b"", queue_id=3, queue_offset=at, store_timestamp=STORED_AT[at])
            ),
        )

    peer.version = 407
    peer.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, Reply(ext_fields={"offset": str(nearest)}))
    peer.on(RequestCode.PULL_MESSAGE, pull)
    assert await offset.search_offset(remoting, peer.address, QUEUE, time) == first
    peer.on(RequestCode.PULL_MESSAGE, Reply(ResponseCode.NO_PERMISSION, "no"))
    assert await offset.search_offset(remoting, peer.address, QUEUE, time) == nearest


@pytest.mark.parametrize("fields", [{}, {"offset": "many"}])
async def test_a_response_without_fields_fails(remoting: RemotingClient, peer: Peer, fields: dict[str, str]) -> None:
    """A missing number is not a zero."""
    peer.on(RequestCode.GET_MAX_OFFSET, Reply(ext_fields=fields))
    with pytest.raises(ProtocolError, match="offset"):
        await offset.get_max_offset(remoting, peer.address, QUEUE)


async def test_a_group_is_deleted_with_its_offsets(remoting: RemotingClient, peer: Peer) -> None:
    """Brokers before 5.0 know the field by another name."""
    await group.delete_subscription_group(remoting, peer.address, "g")
    fields = fields_of(peer, RequestCode.DELETE_SUBSCRIPTIONGROUP)
    assert fields == {"groupName": "g", "cleanOffset": "true", "removeOffset": "true"}


async def test_unregister_names_only_the_group_that_leaves(remoting: RemotingClient, peer: Peer) -> None:
    await group.unregister_client(remoting, peer.address, "me@1", consumer_group="g")
    assert fields_of(peer, RequestCode.UNREGISTER_CLIENT) == {"clientID": "me@1", "consumerGroup": "g"}


async def test_lock_returns_only_the_granted_queues(remoting: RemotingClient, peer: Peer) -> None:
    """Queues that the response lacks are locked by another client."""
    other = MessageQueue("T", "broker-a", 4)
    peer.on(RequestCode.LOCK_BATCH_MQ, Reply(body=LockBatchResponseBody(frozenset({QUEUE})).to_json()))
    assert await lock.lock_batch(remoting, peer.address, "g", "me@1", [QUEUE, other]) == {QUEUE}
    (request,) = peer.got(RequestCode.LOCK_BATCH_MQ)
    assert LockBatchRequestBody.from_json(request.body) == LockBatchRequestBody("g", "me@1", (QUEUE, other))
    await lock.unlock_batch(remoting, peer.address, "g", "me@1", [QUEUE])
    (request,) = peer.got(RequestCode.UNLOCK_BATCH_MQ)
    assert LockBatchRequestBody.from_json(request.body).queues == (QUEUE,)


async def test_a_send_back_omits_fields_without_a_value(remoting: RemotingClient, peer: Peer) -> None:
    """The broker then uses its own setting."""
    await send_message_back(remoting, peer.address, "g", 4096, 0, broker_name="b")
    fields = fields_of(peer, RequestCode.CONSUMER_SEND_MSG_BACK)
    assert fields == {"offset": "4096", "group": "g", "delayLevel": "0", "unitMode": "false", "bname": "b"}
    await send_message_back(
        remoting, peer.address, "g", 1, -1, broker_name="b", origin_msg_id="ID", origin_topic="T", max_reconsume_times=5
    )
    fields = peer.got(RequestCode.CONSUMER_SEND_MSG_BACK)[1].ext_fields
    assert (fields["delayLevel"], fields["originMsgId"], fields["maxReconsumeTimes"]) == ("-1", "ID", "5")


async def test_a_reset_returns_the_new_offsets(remoting: RemotingClient, peer: Peer) -> None:
    """It covers all queues. Brokers return the offsets as a map or as a list."""
    in_map = b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"T"}:5}}'
    in_list = b'{"offsetTable":[{"brokerName":"broker-a","offset":5,"queueId":3,"topic":"T"}]}'
    for body in (in_map, in_list):
        peer.on(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, Reply(body=body))
        assert await admin.reset_offset(remoting, peer.address, "g", "T", admin.RESET_TO_END) == {QUEUE: 5}
    fields = peer.got(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)[0].ext_fields
    assert fields == {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true", "queueId": "-1"}


async def test_an_unknown_code_keeps_its_number(remoting: RemotingClient, peer: Peer) -> None:
    """The refusal of a newer broker is reported unchanged."""
    peer.on(RequestCode.GET_MAX_OFFSET, Reply(4711, "a reason of the future"))
    with pytest.raises(BrokerError, match=r"4711.*a reason of the future.*rmqd does not know") as raised:
        await offset.get_max_offset(remoting, peer.address, QUEUE)
    assert type(raised.value) is BrokerError
    peer.on(RequestCode.GET_MAX_OFFSET, Reply(ResponseCode.QUERY_NOT_FOUND))
    with pytest.raises(QueryNotFoundError):
        await offset.get_max_offset(remoting, peer.address, QUEUE)
