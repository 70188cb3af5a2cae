"""Messages that are to come later: delay levels (`ScheduleMessageService.java`) and timers."""

from __future__ import annotations

from rmqd.broker.journal import Journal
from rmqd.broker.settings import BrokerSettings
from rmqd.broker.store.message_store import MessageStore
from rmqd.clock import Clock


class ScheduleMessageService:
    """Delivers what is due by `clock.wall`."""

    def __init__(self, store: MessageStore, settings: BrokerSettings, clock: Clock, journal: Journal) -> None:
        self._store = store
        self._clock = clock
        self._journal = journal
        self.change_levels(settings)

    def change_levels(self, settings: BrokerSettings) -> None:
        """Go on with other delay levels."""
        self._levels = settings.messageDelayLevel.split()

    def next_due(self) -> float | None:
        """When the next message is due, in seconds since 1970; None where none waits."""
        return None

    def wake(self) -> None:
        """The clock jumped: deliver what is due now."""

    async def run(self) -> None:
        """Deliver until cancelled."""
