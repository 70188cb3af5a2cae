"""Requests of lite topics: which of them a client wants (RIP-83, RocketMQ 5.5)."""

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
    """Tell a broker which lite topics a client wants, or wants no longer.

    Raises RequestCodeNotSupportedError from a broker before 5.5, a BrokerError with the code
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED where the broker has too many.
    """
    body = LiteSubscriptionCtlRequestBody((subscription,)).to_json()
    await request(remoting, address, RequestCode.LITE_SUBSCRIPTION_CTL, body, timeout_seconds=timeout_seconds)
