"""Polls the brokers for a group's offsets every few seconds, whether or not its query makes progress."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from rmqd.client.group_lag import LagReader
from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.errors import RmqdError, RouteNotFoundError
from rmqd.spark.engine.figures import Figures
from rmqd.spark.group_order import GroupOrder
from rmqd.wire.topics import retry_topic

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 2.0
ROUTES_SECONDS: Final = 30.0


class QueuePlaces:
    """Polls all queues of a group, and passes the answers to its figures. It joins no group, and pulls nothing."""

    def __init__(self, order: GroupOrder, figures: Figures, clock: Clock) -> None:
        self._group = order.group
        self._topics = [*order.topics, retry_topic(order.group)]
        self._figures = figures
        self._clock = clock
        self._client = ClientInstance(order.client_options, clock=clock)
        self._reader = LagReader(self._client, clock)
        self._routes_at: float | None = None

    async def watch(self) -> None:
        """Poll every two seconds until cancelled, then close the connections."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._client.close()

    async def look(self) -> None:
        """Poll all queues once."""
        now = self._clock.monotonic()
        anew = self._routes_at is None or now - self._routes_at >= ROUTES_SECONDS
        if anew:
            self._routes_at = now
        await asyncio.gather(*(self._look_at(topic, anew=anew) for topic in self._topics))

    async def _look_at(self, topic: str, *, anew: bool) -> None:
        try:
            if anew:
                await self._client.routes.refresh(topic)
            lag = await self._reader.topic_lag(self._group, topic)
        except RouteNotFoundError as error:
            if topic == retry_topic(self._group):
                self._figures.queues_are(topic, ())  # the broker creates it at the group's first heartbeat
            else:
                self._figures.queues_unknown(topic, str(error))
        except RmqdError as error:
            log.debug("lag.unknown", topic=topic, error=str(error))
            self._figures.queues_unknown(topic, str(error))
        else:
            self._figures.queues_are(topic, lag.queues)
