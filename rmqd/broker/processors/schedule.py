"""How far delayed messages have been delivered (`AdminBrokerProcessor.java`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.channel import Channel, Processors
from rmqd.broker.reply import Reply
from rmqd.codes import RequestCode
from rmqd.wire.bodies.delay_offset import DelayOffsetSerializeWrapper
from rmqd.wire.command import RemotingCommand

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class ScheduleProcessor:
    """Answers administrators about delayed messages."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {RequestCode.GET_ALL_DELAY_OFFSET: self.all_delay_offsets}

    def all_delay_offsets(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_ALL_DELAY_OFFSET (45): the progress of all levels, as RocketMQ stores it in delayOffset.json."""
        offsets = {level: offset for level, (offset, _) in sorted(self._broker.schedule.progress().items())}
        return Reply(body=DelayOffsetSerializeWrapper(offsets).to_json())
