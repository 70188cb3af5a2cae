"""Topics as administrators see and change them (17, 18, 21, 215, 351)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.reply import Processors

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class TopicAdminProcessor:
    """Topics as administrators see and change them (17, 18, 21, 215, 351)."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {}
