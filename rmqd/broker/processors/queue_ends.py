"""The ends of queues, and offsets by time (`AdminBrokerProcessor.java`)."""

from __future__ import annotations

from typing import Final

from rmqd.broker.channel import Channel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import Reply
from rmqd.codes import RequestCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.offset import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    SearchOffsetRequestHeader,
)
from rmqd.wire.topic_kinds import BATCH_QUEUE, QUEUE_TYPE

_NO_TIME: Final = -1
_NEVER: Final = -1  # the first offset of a queue of batches that never had a message


class QueueEndsProcessor(RequestProcessor):
    """Answers requests about the ends of a queue."""

    @answers(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_MAX_OFFSET (30): the offset of the next message."""
        header = GetMaxOffsetRequestHeader.from_ext_fields(request.ext_fields)
        return _offset(self._broker.store.max_offset(header.topic, header.queue_id))

    @answers(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_MIN_OFFSET (31): the offset of the first message that the broker keeps."""
        header = GetMinOffsetRequestHeader.from_ext_fields(request.ext_fields)
        config, queue = self._broker.topics.get(header.topic), self._broker.store.queue(header.topic, header.queue_id)
        never = _NEVER if config is not None and config.attributes.get(QUEUE_TYPE) == BATCH_QUEUE else 0
        reply = _offset(never if queue is None else queue.min_offset)
        return reply._replace(remark="")  # as the real broker answers

    @answers(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search(self, channel: Channel, request: RemotingCommand) -> Reply:
        """SEARCH_OFFSET_BY_TIMESTAMP (29): the offset of the first message stored at or after a time."""
        header = SearchOffsetRequestHeader.from_ext_fields(request.ext_fields)
        upper = (header.boundary_type or "").lower() == "upper"
        return _offset(self._broker.store.offset_by_time(header.topic, header.queue_id, header.timestamp, upper=upper))

    @answers(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_EARLIEST_MSG_STORETIME (32): the store time of the first message that the broker keeps."""
        header = GetEarliestMsgStoretimeRequestHeader.from_ext_fields(request.ext_fields)
        queue = self._broker.store.queue(header.topic, header.queue_id)
        entry = None if queue is None else queue.entry(queue.min_offset)
        timestamp = _NO_TIME if entry is None else entry.store_timestamp
        return Reply(ext_fields=GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp).ext_fields())


def _offset(offset: int) -> Reply:
    return Reply(ext_fields=OffsetResponseHeader(offset=offset).ext_fields())
