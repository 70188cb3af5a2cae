"""Messages by key, by unique key and by commit log offset (12, 33)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.reply import Processors

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class QueryMessageProcessor:
    """Messages by key, by unique key and by commit log offset (12, 33)."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {}
