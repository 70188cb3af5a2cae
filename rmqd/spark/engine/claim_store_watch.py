"""Polls the store of `deduplicate` every few seconds for availability.

A task that waits for the store reports nothing to the driver before its range is settled, so the driver polls the store
itself. The driver's network may not reach the store, although executors reach it. So an unreachable store is a problem
of the group only if the driver has reached it before.
"""

from __future__ import annotations

import secrets
from typing import Final

import structlog

from rmqd.claims.opening import open_store
from rmqd.claims.store import ClaimStoreError, Terms
from rmqd.clock import Clock
from rmqd.consumer.handling.held_claims import LEASE_SECONDS
from rmqd.consumer.options import DeduplicationOptions
from rmqd.spark.engine.figures import Figures

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 5.0


class ClaimStoreWatch:
    """Passes the store's availability to the group's figures. It claims no messages."""

    def __init__(self, group: str, options: DeduplicationOptions, figures: Figures, clock: Clock) -> None:
        terms = Terms(group, secrets.token_hex(8), LEASE_SECONDS, options.keep_seconds)
        self._store = open_store(options.store, options.url, terms)
        self._log = log.bind(group=group)
        self._figures = figures
        self._clock = clock
        self.has_answered = False
        """Whether the store was ever reachable from here."""
        self._is_told = False

    async def watch(self) -> None:
        """Poll until cancelled, then close the connections."""
        try:
            while True:
                await self.look()
                await self._clock.sleep(LOOK_SECONDS)
        finally:
            await self.close()

    async def look(self) -> None:
        """Poll once."""
        try:
            await self._store.renew(())
        except ClaimStoreError as error:
            self._is_away(error)
        else:
            self.has_answered = True
            self._figures.claim_store_is("")

    async def close(self) -> None:
        """Close the connections."""
        await self._store.close()

    def _is_away(self, error: ClaimStoreError) -> None:
        if self.has_answered:
            self._figures.claim_store_is(str(error))
        elif not self._is_told:
            self._is_told = True
            what = "if executors cannot reach it either, no message is handled: see claims.store_away in their logs"
            self._log.warning("spark.claim_store_unreached", error=str(error), consequence=what)
