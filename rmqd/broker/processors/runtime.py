"""The broker's settings and how it is doing (25, 26, 28)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.reply import Processors

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class RuntimeProcessor:
    """The broker's settings and how it is doing (25, 26, 28)."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {}
