"""The single requests: fields on the wire, parsed responses, and errors."""

from __future__ import annotations

import json

import pytest

from rmqd.client.api import admin_requests as admin
from rmqd.client.api import group_requests as group
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors.broker_errors import (
    BrokerFailureError,
    ConsumerNotOnlineError,
    SubscriptionParseError,
)
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.bodies.heartbeat_data import CheckClientRequestBody, sql_subscription
from tests.client.peer import Peer, Reply
from tests.client.test_api import fields_of


async def test_a_group_without_members_has_an_empty_consumer_list(remoting: RemotingClient, peer: Peer) -> None:
    """The broker's response code is not specific, so the remark is checked."""
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    peer.on(code, Reply(body=b'{"consumerIdList":["b@1","a@1"]}'))
    assert await group.get_consumer_list(remoting, peer.address, "g") == ["b@1", "a@1"]
    peer.on(code, Reply(ResponseCode.SYSTEM_ERROR, "no consumer for this group, g"))
    assert await group.get_consumer_list(remoting, peer.address, "g") == []
    peer.on(code, Reply(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException"))
    with pytest.raises(BrokerFailureError):
        await group.get_consumer_list(remoting, peer.address, "g")


async def test_a_refused_subscription_is_raised_with_the_brokers_remark(remoting: RemotingClient, peer: Peer) -> None:
    subscription = sql_subscription("T", "a >", 1)
    peer.on(RequestCode.CHECK_CLIENT_CONFIG, Reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "unexpected end"))
    with pytest.raises(SubscriptionParseError, match="unexpected end"):
        await group.check_client_config(remoting, peer.address, "me@1", "g", subscription)
    (request,) = peer.got(RequestCode.CHECK_CLIENT_CONFIG)
    assert CheckClientRequestBody.from_json(request.body) == CheckClientRequestBody("me@1", "g", subscription)


async def test_settings_of_a_group_are_read_and_updated(remoting: RemotingClient, peer: Peer) -> None:
    """A group without members has its own error."""
    config = SubscriptionGroupConfig(group_name="g", retry_max_times=3)
    peer.on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, Reply(body=config.to_json()))
    assert await group.subscription_group(remoting, peer.address, "g") == config
    await group.update_subscription_group(remoting, peer.address, config)
    (request,) = peer.got(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    assert SubscriptionGroupConfig.from_json(request.body) == config
    peer.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, Reply(ResponseCode.CONSUMER_NOT_ONLINE))
    with pytest.raises(ConsumerNotOnlineError):
        await group.consumer_connection(remoting, peer.address, "g")


async def test_a_topic_is_created_with_equal_read_and_write_queues(remoting: RemotingClient, peer: Peer) -> None:
    await admin.create_topic(remoting, peer.address, "T", 8)
    fields = fields_of(peer, RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert (fields["topic"], fields["readQueueNums"], fields["writeQueueNums"], fields["perm"]) == ("T", "8", "8", "6")


async def test_a_missing_message_is_not_an_error(remoting: RemotingClient, peer: Peer) -> None:
    """Other failures are errors."""
    view, query = RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.QUERY_MESSAGE
    peer.on(view, Reply(ResponseCode.SYSTEM_ERROR, "can not find message by the offset, 7"))
    assert await admin.view_message(remoting, peer.address, 7) is None
    peer.on(view, Reply(ResponseCode.SYSTEM_ERROR, "java.io.IOException"))
    with pytest.raises(BrokerFailureError):
        await admin.view_message(remoting, peer.address, 7)
    peer.on(query, Reply(ResponseCode.QUERY_NOT_FOUND))
    assert await admin.query_message(remoting, peer.address, "T", "k") == b""
    peer.on(query, Reply(body=b"records"))
    assert await admin.query_message(remoting, peer.address, "T", "k", unique=True) == b"records"
    first, second = peer.got(query)
    assert "_UNIQUE_KEY_QUERY" not in first.ext_fields
    assert second.ext_fields["_UNIQUE_KEY_QUERY"] == "true"


async def test_clusters_and_topics_are_parsed_from_loose_json(remoting: RemotingClient, peer: Peer) -> None:
    """The response to 106 always has numbers as keys, the broker ids."""
    loose = (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:20911"},"brokerName":"broker-a","cluster":"c"}},'
        b'"clusterAddrTable":{"c":["broker-a"]}}'
    )
    peer.on(RequestCode.GET_BROKER_CLUSTER_INFO, Reply(body=loose))
    cluster = await admin.cluster_info(remoting, peer.address)
    assert cluster.broker_addr_table["broker-a"].master == "127.0.0.1:20911"
    topics = json.dumps({"topicList": ["T", "U"]}).encode()
    peer.on(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Reply(body=topics))
    assert await admin.topic_list(remoting, peer.address) == ("T", "U")
