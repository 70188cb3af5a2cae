"""Where topics and groups stand (202, 203, 204, 208, 300, 303, 343, 345)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.reply import Processors

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class StatsProcessor:
    """Where topics and groups stand (202, 203, 204, 208, 300, 303, 343, 345)."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {}
