"""Messages that a consumer could not handle (36)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.reply import Processors

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class SendBackProcessor:
    """Messages that a consumer could not handle (36)."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {}
