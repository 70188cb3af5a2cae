"""The progress of delayed messages (`AdminBrokerProcessor.java`)."""

from __future__ import annotations

from rmqd.broker.channel import Channel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import Reply
from rmqd.codes import RequestCode
from rmqd.wire.bodies.delay_offset import DelayOffsetSerializeWrapper
from rmqd.wire.command import RemotingCommand


class ScheduleProcessor(RequestProcessor):
    """Answers administrators' requests about delayed messages."""

    @answers(RequestCode.GET_ALL_DELAY_OFFSET)
    def all_delay_offsets(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_ALL_DELAY_OFFSET (45): the progress of all levels, as RocketMQ stores it in delayOffset.json."""
        offsets = {level: offset for level, (offset, _) in sorted(self._broker.schedule.progress().items())}
        return Reply(body=DelayOffsetSerializeWrapper(offsets).to_json())
