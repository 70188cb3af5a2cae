"""The requests one by one: what is on the wire, what is made of the answer, and which error a refusal becomes."""

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


async def test_a_group_that_nobody_is_in(remoting: RemotingClient, peer: Peer) -> None:
    """The broker has no code for it: its words tell it from other failures."""
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    peer.on(code, Reply(body=b'{"consumerIdList":["b@1","a@1"]}'))
    assert await group.get_consumer_list(remoting, peer.address, "g") == ["b@1", "a@1"]
    peer.on(code, Reply(ResponseCode.SYSTEM_ERROR, "no consumer for this group, g"))
    assert await group.get_consumer_list(remoting, peer.address, "g") == []
    peer.on(code, Reply(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException"))
    with pytest.raises(BrokerFailureError):
        await group.get_consumer_list(remoting, peer.address, "g")


async def test_checking_a_subscription(remoting: RemotingClient, peer: Peer) -> None:
    """The broker gets the expression, and its complaint reaches the caller."""
    subscription = sql_subscription("T", "a >", 1)
    peer.on(RequestCode.CHECK_CLIENT_CONFIG, Reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "unexpected end"))
    with pytest.raises(SubscriptionParseError, match="unexpected end"):
        await group.check_client_config(remoting, peer.address, "me@1", "g", subscription)
    (request,) = peer.got(RequestCode.CHECK_CLIENT_CONFIG)
    assert CheckClientRequestBody.from_json(request.body) == CheckClientRequestBody("me@1", "g", subscription)


async def test_a_groups_settings(remoting: RemotingClient, peer: Peer) -> None:
    """What the broker has of a group; nobody online has an error of its own."""
    config = SubscriptionGroupConfig(group_name="g", retry_max_times=3)
    peer.on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, Reply(body=config.to_json()))
    assert await group.subscription_group(remoting, peer.address, "g") == config
    await group.update_subscription_group(remoting, peer.address, config)
    (request,) = peer.got(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    assert SubscriptionGroupConfig.from_json(request.body) == config
    peer.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, Reply(ResponseCode.CONSUMER_NOT_ONLINE))
    with pytest.raises(ConsumerNotOnlineError):
        await group.consumer_connection(remoting, peer.address, "g")


async def test_making_a_topic(remoting: RemotingClient, peer: Peer) -> None:
    """As many queues for reading as for writing."""
    await admin.create_topic(remoting, peer.address, "T", 8)
    fields = fields_of(peer, RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert (fields["topic"], fields["readQueueNums"], fields["writeQueueNums"], fields["perm"]) == ("T", "8", "8", "6")


async def test_messages_that_are_not_there(remoting: RemotingClient, peer: Peer) -> None:
    """Nothing found is no error; another failure is."""
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


async def test_clusters_and_topics_in_loose_json(remoting: RemotingClient, peer: Peer) -> None:
    """106 is never strict: broker ids are numbers as keys."""
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
