"""Requests about lite topics: a client's subscriptions to them (RIP-83, RocketMQ 5.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.client.api.request import REQUEST_TIMEOUT_SECONDS, request
from rmqd.codes import RequestCode
from rmqd.wire.bodies.lite import LiteSubscriptionCtlRequestBody

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient
    from rmqd.wire.bodies.lite import LiteSubscription


async def control_lite_subscription(
    remoting: RemotingClient,
    address: str,
    subscription: LiteSubscription,
    *,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> None:
    """Subscribe a client to lite topics at a broker, or unsubscribe it.

    Raises RequestCodeNotSupportedError from a broker before 5.5, and a BrokerError with the code
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED if the broker has too many subscriptions.
    """
    body = LiteSubscriptionCtlRequestBody((subscription,)).to_json()
    await request(remoting, address, RequestCode.LITE_SUBSCRIPTION_CTL, body, timeout_seconds=timeout_seconds)
