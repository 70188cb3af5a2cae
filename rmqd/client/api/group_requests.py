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
RELAYED_TIMEOUT_SECONDS = 12.0  # longer than a broker waits for a member: AdminBrokerProcessor.callConsumer


async def get_consumer_list(
    remoting: RemotingClient, address: str, group: str, *, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
) -> list[str]:
    """Return the client ids of the group's members that this broker knows; empty if it knows none."""
    header = GetConsumerListByGroupRequestHeader(consumer_group=group)
    try:
        reply = await request(remoting, address, header, timeout_seconds=timeout_seconds)
    except BrokerFailureError as error:
        # the broker has no specific code for this: ConsumerManageProcessor.getConsumerListByGroup
        if error.remark.startswith("no consumer for this group"):
            return []
        raise
    return list(GetConsumerListByGroupResponseBody.from_json(reply.body).consumer_id_list)


async def send_heartbeat(remoting: RemotingClient, address: str, heartbeat: HeartbeatData) -> int:
    """Send this process's groups and their subscriptions to a broker. Returns the broker's version number."""
    body, timeout = heartbeat.to_json(), HEARTBEAT_TIMEOUT_SECONDS
    return (await request(remoting, address, RequestCode.HEART_BEAT, body, timeout_seconds=timeout)).version


async def unregister_client(remoting: RemotingClient, address: str, client_id: str, *, consumer_group: str) -> None:
    """Unregister a client from a group. The broker notifies the other members at once."""
    header = UnregisterClientRequestHeader(client_id=client_id, consumer_group=consumer_group)
    await request(remoting, address, header)


async def check_client_config(
    remoting: RemotingClient, address: str, client_id: str, group: str, subscription: SubscriptionData
) -> None:
    """Ask a broker to check a subscription's expression.

    Raises SubscriptionParseError for invalid SQL, BrokerFailureError if the broker has SQL filters disabled.
    """
    body = CheckClientRequestBody(client_id=client_id, group=group, subscription_data=subscription)
    await request(remoting, address, RequestCode.CHECK_CLIENT_CONFIG, body.to_json())


async def consumer_connection(remoting: RemotingClient, address: str, group: str) -> ConsumerConnection:
    """Return the group's members with connections and subscription. Raises ConsumerNotOnlineError if there are none."""
    body = await admin_request(remoting, address, GetConsumerConnectionListRequestHeader(consumer_group=group))
    return ConsumerConnection.from_json(body)


async def consumer_running_info(
    remoting: RemotingClient, address: str, group: str, client_id: str
) -> ConsumerRunningInfo:
    """Return a member's running info. The broker forwards the request to the member, and waits up to 10 s.

    The timeout must not be shorter, because then the broker would seem to be unreachable.
    """
    header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id, jstack_enable=False)
    reply = await request(remoting, address, header, timeout_seconds=RELAYED_TIMEOUT_SECONDS)
    return ConsumerRunningInfo.from_json(reply.body)


async def subscription_group(remoting: RemotingClient, address: str, group: str) -> SubscriptionGroupConfig:
    """Return the group's settings on a broker. Raises SubscriptionGroupNotExistError if the group is missing.

    A broker with autoCreateSubscriptionGroup creates a missing group on this request. `subscription_groups` creates
    nothing.
    """
    body = await admin_request(remoting, address, GetSubscriptionGroupConfigRequestHeader(group=group))
    return SubscriptionGroupConfig.from_json(body)


async def subscription_groups(remoting: RemotingClient, address: str) -> dict[str, SubscriptionGroupConfig]:
    """Return the settings of all groups on a broker, by name."""
    body = await admin_request(remoting, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return dict(SubscriptionGroupWrapper.from_json(body).subscription_group_table)


async def update_subscription_group(remoting: RemotingClient, address: str, config: SubscriptionGroupConfig) -> None:
    """Create or change the group's settings on a broker."""
    await admin_request(remoting, address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config.to_json())


async def delete_subscription_group(remoting: RemotingClient, address: str, group: str) -> None:
    """Delete a group on a broker, with its offsets there. A missing group is not an error.

    Its retry topic and its dead letters stay, because they are topics.
    """
    header = DeleteSubscriptionGroupRequestHeader(group_name=group, clean_offset=True)
    before_5 = {"removeOffset": "true"}
    await request(remoting, address, header, extra_fields=before_5, timeout_seconds=ADMIN_TIMEOUT_SECONDS)


async def lock_batch(
    remoting: RemotingClient, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
) -> frozenset[MessageQueue]:
    """Lock queues for a client, or renew its locks. Returns the queues that the client has locked."""
    body = LockBatchRequestBody(consumer_group=group, client_id=client_id, queues=tuple(queues)).to_json()
    reply = await request(remoting, address, RequestCode.LOCK_BATCH_MQ, body, timeout_seconds=LOCK_TIMEOUT_SECONDS)
    return frozenset(LockBatchResponseBody.from_json(reply.body).queues)


async def unlock_batch(
    remoting: RemotingClient, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
) -> None:
    """Unlock queues. Locks of other clients are unchanged."""
    body = LockBatchRequestBody(consumer_group=group, client_id=client_id, queues=tuple(queues))
    await request(remoting, address, RequestCode.UNLOCK_BATCH_MQ, body.to_json())


async def control_lite_subscription(remoting: RemotingClient, address: str, subscription: LiteSubscription) -> None:
    """Subscribe a client to lite topics at a broker, or unsubscribe it.

    Raises RequestCodeNotSupportedError from a broker before 5.5, and a BrokerError with the code
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED if the broker has too many subscriptions.
    """
    body = LiteSubscriptionCtlRequestBody((subscription,)).to_json()
    await request(remoting, address, RequestCode.LITE_SUBSCRIPTION_CTL, body)
