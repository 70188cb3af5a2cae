"""Consumer groups as administrators see and change them (200, 201, 207, 225, 352, 401, 402)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.reply import Processors

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class GroupAdminProcessor:
    """Consumer groups as administrators see and change them (200, 201, 207, 225, 352, 401, 402)."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {}
