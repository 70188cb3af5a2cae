"""Removes clients that send no heartbeats although their connection is open (`ClientHousekeepingService.java`)."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from rmqd.broker.members import ConsumerManager, ProducerManager

log = structlog.get_logger(__name__)

SCAN_SECONDS: Final = 10.0


class ClientHousekeepingService:
    """Removes silent members and producers, by the event loop's own time."""

    def __init__(self, consumers: ConsumerManager, producers: ProducerManager) -> None:
        self._consumers = consumers
        self._producers = producers

    async def run(self, channel_expired_seconds: float) -> None:
        """Check every 10 s, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SCAN_SECONDS)
            self.close_silent(loop.time() - channel_expired_seconds)

    def close_silent(self, heard_before: float) -> None:
        """Remove clients without a heartbeat since this loop time, and close their connections."""
        silent = self._producers.remove_silent(heard_before) + self._consumers.remove_silent(heard_before)
        for client in {client.channel: client for client in silent}.values():
            log.warning("broker.client_expired", client_id=client.client_id, client=client.channel.address)
            client.channel.close()
