"""Checks before the first pull whether rmqd knows the kinds of a group's topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from rmqd.client.api.admin import topic_config
from rmqd.client.api.request import REQUEST_TIMEOUT_SECONDS
from rmqd.client.instance import ClientInstance
from rmqd.errors import RmqdError, UnknownTopicKindError
from rmqd.wire.topic_kinds import unknown_marks
from rmqd.wire.topics import is_light_queue

log = structlog.get_logger(__name__)


async def check_kinds(client: ClientInstance, topics: Iterable[str]) -> None:
    """Query the settings of each topic from its brokers (GET_TOPIC_CONFIG, 351). The routes must be known.

    Raises UnknownTopicKindError if rmqd does not know the kind of a topic. A failed query is ignored: the broker is
    unreachable, forbids the query, or is too old to have such kinds.
    """
    places = [
        (topic, broker.broker_name)
        for topic in topics
        if not is_light_queue(topic) and (route := client.routes.route(topic)) is not None
        for broker in route.broker_datas
    ]
    await asyncio.gather(*(_check_at(client, *place) for place in places))


async def _check_at(client: ClientInstance, topic: str, broker_name: str) -> None:
    address = client.routes.address(broker_name)
    if address is None:
        return
    try:
        config = await topic_config(client.remoting, address, topic, timeout_seconds=REQUEST_TIMEOUT_SECONDS)
    except RmqdError as error:
        log.debug("topic.kind_not_checked", topic=topic, address=address, error=str(error))
        return
    if marks := unknown_marks(config):
        raise UnknownTopicKindError(topic, f"{broker_name} ({address})", marks)
