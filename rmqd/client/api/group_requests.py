"""Requests about consumer groups: members, heartbeats, settings, queue locks, and subscriptions to lite topics."""

from __future__ import annotations

from collections.abc import Iterable

from rmqd.client.api.remoting_request import ADMIN_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS, admin_request, request
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode
from rmqd.errors.broker_errors import BrokerFailureError
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rmqd.wire.bodies.group_bodies import (
    ConsumerRunningInfo,
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from rmqd.wire.bodies.heartbeat_data import CheckClientRequestBody, HeartbeatData, SubscriptionData
from rmqd.wire.bodies.pop_bodies import LiteSubscription, LiteSubscriptionCtlRequestBody
from rmqd.wire.bodies.stats_bodies import ConsumerConnection
from rmqd.wire.headers.group_headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    UnregisterClientRequestHeader,
)
from rmqd.wire.message_queue import MessageQueue

HEARTBEAT_TIMEOUT_SECONDS = 3.0
LOCK_TIMEOUT_SECONDS = 1.0  # as in Java (lockBatchMQ)
RELAYED_TIMEOUT_SECONDS = 12.0  # a broker waits up to 10 s for a member's response (AdminBrokerProcessor.callConsumer)


async def get_consumer_list(
    remoting: RemotingClient, address: str, group: str, *, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
) -> list[str]:
    """Return the client ids of the group's members that this broker knows; empty if it knows none."""
    header = GetConsumerListByGroupRequestHeader(consumer_group=group)
    try:
        reply = await request(remoting, address, header, timeout_seconds=timeout_seconds)
    except BrokerFailureError as error:
        # brokers have no specific response code for this case: ConsumerManageProcessor.getConsumerListByGroup
        if error.remark.startswith("no consumer for this group"):
            return []
        raise
    return list(GetConsumerListByGroupResponseBody.from_json(reply.body).consumer_id_list)


async def send_heartbeat(remoting: RemotingClient, address: str, heartbeat: HeartbeatData) -> int:
    """Send a heartbeat with groups and their subscriptions to a broker. Returns the broker's version number."""
    body, timeout = heartbeat.to_json(), HEARTBEAT_TIMEOUT_SECONDS
    return (await request(remoting, address, RequestCode.HEART_BEAT, body, timeout_seconds=timeout)).version


async def unregister_client(remoting: RemotingClient, address: str, client_id: str, *, consumer_group: str) -> None:
    """Unregister a client from a group. The broker notifies the other members at once."""
    header = UnregisterClientRequestHeader(client_id=client_id, consumer_group=consumer_group)
    await request(remoting, address, header)


async def check_client_config(
    remoting: RemotingClient, address: str, client_id: str, group: str, subscription: SubscriptionData
) -> None:
    """Ask a broker to check the filter expression of a subscription.

    Raises SubscriptionParseError for invalid SQL, and BrokerFailureError if SQL filters are disabled at the broker.
    """
    body = CheckClientRequestBody(client_id=client_id, group=group, subscription_data=subscription)
    await request(remoting, address, RequestCode.CHECK_CLIENT_CONFIG, body.to_json())


async def consumer_connection(remoting: RemotingClient, address: str, group: str) -> ConsumerConnection:
    """Return the group's members and subscriptions at a broker. Raises ConsumerNotOnlineError if it has no members."""
    body = await admin_request(remoting, address, GetConsumerConnectionListRequestHeader(consumer_group=group))
    return ConsumerConnection.from_json(body)


async def consumer_running_info(
    remoting: RemotingClient, address: str, group: str, client_id: str
) -> ConsumerRunningInfo:
    """Return a member's report on its state. The broker forwards the request to the member, and waits up to 10 s.

    The timeout is longer than 10 s. Otherwise the broker would seem unreachable if the member does not respond.
    """
    header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id, jstack_enable=False)
    reply = await request(remoting, address, header, timeout_seconds=RELAYED_TIMEOUT_SECONDS)
    return ConsumerRunningInfo.from_json(reply.body)


async def subscription_group(remoting: RemotingClient, address: str, group: str) -> SubscriptionGroupConfig:
    """Return the group's settings on a broker. Raises SubscriptionGroupNotExistError if the group is missing.

    A broker with autoCreateSubscriptionGroup creates the missing group instead. Use `subscription_groups` to avoid
    that.
    """
    body = await admin_request(remoting, address, GetSubscriptionGroupConfigRequestHeader(group=group))
    return SubscriptionGroupConfig.from_json(body)


async def subscription_groups(remoting: RemotingClient, address: str) -> dict[str, SubscriptionGroupConfig]:
    """Return the settings of all groups on a broker, by name."""
    body = await admin_request(remoting, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return dict(SubscriptionGroupWrapper.from_json(body).subscription_group_table)


async def update_subscription_group(remoting: RemotingClient, address: str, config: SubscriptionGroupConfig) -> None:
    """Create a group on a broker with these settings, or replace its settings."""
    await admin_request(remoting, address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config.to_json())


async def delete_subscription_group(remoting: RemotingClient, address: str, group: str) -> None:
    """Delete a group's settings and offsets on a broker. A missing group is not an error.

    The group's retry topic and dead letter topic are not deleted.
    """
    header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=True)
    before_5 = {"removeOffset": "true"}
    await request(remoting, address, header, extra_fields=before_5, timeout_seconds=ADMIN_TIMEOUT_SECONDS)


async def lock_batch(
    remoting: RemotingClient, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
) -> frozenset[MessageQueue]:
    """Lock queues for a client, or renew its locks. Returns the queues that are locked for the client now."""
    body = LockBatchRequestBody(consumer_group=group, client_id=client_id, queues=tuple(queues)).to_json()
    reply = await request(remoting, address, RequestCode.LOCK_BATCH_MQ, body, timeout_seconds=LOCK_TIMEOUT_SECONDS)
    return frozenset(LockBatchResponseBody.from_json(reply.body).queues)


async def unlock_batch(
    remoting: RemotingClient, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
) -> None:
    """Release a client's locks on queues. Locks of other clients are unchanged."""
    body = LockBatchRequestBody(consumer_group=group, client_id=client_id, queues=tuple(queues))
    await request(remoting, address, RequestCode.UNLOCK_BATCH_MQ, body.to_json())


async def control_lite_subscription(remoting: RemotingClient, address: str, subscription: LiteSubscription) -> None:
    """Subscribe a client to lite topics at a broker, or unsubscribe it (`subscription.action`).

    Brokers before 5.5 raise RequestCodeNotSupportedError. If a broker has too many subscriptions, it raises a
    BrokerError with the code LITE_SUBSCRIPTION_QUOTA_EXCEEDED.
    """
    body = LiteSubscriptionCtlRequestBody((subscription,)).to_json()
    await request(remoting, address, RequestCode.LITE_SUBSCRIPTION_CTL, body)
