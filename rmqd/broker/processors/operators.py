"""Offset resets, and what operators ask of members through the broker (222, 223, 307, 309)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.reply import Processors

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class OperatorProcessor:
    """Offset resets, and what operators ask of members through the broker (222, 223, 307, 309)."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {}
