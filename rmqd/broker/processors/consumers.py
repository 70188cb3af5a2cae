"""A group's members and its offsets (`ConsumerManageProcessor.java`)."""

from __future__ import annotations

from collections.abc import Mapping

from rmqd.broker.channel import Channel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import Refusal, Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ProtocolError
from rmqd.wire.bodies.group import GetConsumerListByGroupResponseBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.fields import parse_integer
from rmqd.wire.headers.group import GetConsumerListByGroupRequestHeader
from rmqd.wire.headers.offset import OffsetResponseHeader, QueryConsumerOffsetRequestHeader


class ConsumerManageProcessor(RequestProcessor):
    """Answers members' requests about their group: its members and offsets."""

    @answers(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_CONSUMER_LIST_BY_GROUP (38): the client ids of the members."""
        header = GetConsumerListByGroupRequestHeader.from_ext_fields(request.ext_fields)
        info = self._broker.consumers.get(header.consumer_group)
        if info is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
        return Reply(body=GetConsumerListByGroupResponseBody(tuple(info.client_ids)).to_json())

    @answers(RequestCode.QUERY_CONSUMER_OFFSET)
    def query_offset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """QUERY_CONSUMER_OFFSET (14): the offset; 0 for a new group if the queue still has its first message."""
        header = QueryConsumerOffsetRequestHeader.from_ext_fields(request.ext_fields)
        offset = self._broker.offsets.get(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            if header.set_zero_if_not_found is False:
                raise Refusal(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
                )
            if not self._has_first_message(header.topic, header.queue_id):
                raise Refusal(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                )
            offset = 0
        return Reply(ext_fields=OffsetResponseHeader(offset=offset).ext_fields())

    @answers(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update_offset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_CONSUMER_OFFSET (15): commit an offset, unless a reset waits for the group's next pull."""
        broker, fields = self._broker, request.ext_fields
        group, topic = fields.get("consumerGroup", ""), fields.get("topic", "")
        if broker.groups.get(group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if broker.topics.get(topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        queue_id = _number(fields, "queueId", f"QueueId is null, topic is {topic}")
        offset = _number(fields, "commitOffset", f"Offset is null, topic is {topic}")
        if broker.offsets.pending_reset(group, topic, queue_id) is not None:
            return Reply(remark="Offset has been previously reset")
        broker.offsets.commit(group, topic, queue_id, offset)
        return Reply()

    def _has_first_message(self, topic: str, queue_id: int) -> bool:
        """Return whether the queue still has its first message. RocketMQ also checks that this message is in memory."""
        queue = self._broker.store.queue(topic, queue_id)
        return queue is not None and queue.min_offset == 0 and queue.max_offset > 0


def _number(fields: Mapping[str, str], name: str, remark: str) -> int:
    """Read a field as Java does: a value that cannot be parsed counts as missing."""
    try:
        return parse_integer(fields.get(name, ""), name)
    except ProtocolError:
        raise Refusal(ResponseCode.INVALID_PARAMETER, remark) from None
