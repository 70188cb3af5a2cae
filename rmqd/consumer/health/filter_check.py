"""Checks before the first pull whether the brokers of a group's topics accept its SQL expressions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from rmqd.broker_errors import AccessRefusedError, BrokerError
from rmqd.client.api.group import check_client_config
from rmqd.client.instance import ClientInstance
from rmqd.codes import ResponseCode
from rmqd.errors import FilterRefusedError, RmqdError
from rmqd.wire.bodies.heartbeat import EXPRESSION_TAG, SubscriptionData

log = structlog.get_logger(__name__)


async def check_filters(client: ClientInstance, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
    """Send each SQL expression to every broker of its topic (CHECK_CLIENT_CONFIG, 46).

    Raises FilterRefusedError if a broker refuses one. A broker that does not respond is skipped: its pulls will show.
    """
    asked = [data for data in subscriptions if data.expression_type != EXPRESSION_TAG]
    await asyncio.gather(*(_check_topic(client, group, data) for data in asked))


def why_refused(where: str, subscription: SubscriptionData, error: BrokerError) -> str:
    """Return the meaning of a broker's refusal, and the next step."""
    if error.code == ResponseCode.SYSTEM_ERROR and "does not support consumer to filter message" in error.remark:
        return (
            f"{where} filters by tags only: set enablePropertyFilter=true there (in its configuration file, or by "
            "`mqadmin updateBrokerConfig -k enablePropertyFilter -v true`), or subscribe by tags"
        )
    reason = " ".join(error.remark.split())  # the parser writes one line for each expected word
    return f"{where} refuses the SQL filter {subscription.sub_string!r}: {reason:.300}"


async def _check_topic(client: ClientInstance, group: str, subscription: SubscriptionData) -> None:
    topic = subscription.topic
    try:
        route = await client.routes.lookup(topic)
    except RmqdError as error:
        log.debug("filter.not_checked", topic=topic, error=str(error))
        return
    names = [broker.broker_name for broker in route.broker_datas]
    await asyncio.gather(*(_check_at(client, name, group, subscription) for name in names))


async def _check_at(client: ClientInstance, broker_name: str, group: str, subscription: SubscriptionData) -> None:
    address = client.routes.address(broker_name)
    if address is None:
        return
    try:
        await check_client_config(client.remoting, address, client.client_id, group, subscription)
    except AccessRefusedError:
        return
    except BrokerError as error:
        if error.retriable:
            log.warning("filter.not_checked", topic=subscription.topic, address=address, error=str(error))
            return
        where = f"{broker_name} ({address})"
        raise FilterRefusedError(subscription.topic, why_refused(where, subscription, error)) from error
    except RmqdError as error:
        if not error.is_reported:
            log.warning("filter.not_checked", topic=subscription.topic, address=address, error=str(error))
