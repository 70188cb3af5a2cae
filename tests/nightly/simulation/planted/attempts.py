"""Bugs in the number and the delay of attempts, and in dead letters."""

from __future__ import annotations

import pytest

from rmqd.consumer.handling.send_back import SendBack
from rmqd.wire.messages.message import Message
from tests.nightly.simulation.planted.registry import orderly, plant


@plant
def gives_up_early(patch: pytest.MonkeyPatch) -> None:
    """A message is dead-lettered one attempt too early."""
    patch.setattr(SendBack, "is_last_attempt", lambda self, message: message.reconsume_times >= self._max - 1)


@plant
def retries_at_once(patch: pytest.MonkeyPatch) -> None:
    """A retry uses the lowest delay level, whatever the handler and the group want."""
    right = SendBack.send_back

    async def by_broker(self: SendBack, message: Message, delay_level: int) -> bool:
        return await right(self, message, min(delay_level, 1) or 1)

    patch.setattr(SendBack, "send_back", by_broker)


@plant(needs=orderly)
def forgets_attempts(patch: pytest.MonkeyPatch) -> None:
    """An orderly group counts no attempts, and never dead-letters a message."""
    patch.setattr(Message, "count_attempt", lambda self: None)
