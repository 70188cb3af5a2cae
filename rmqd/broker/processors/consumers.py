"""A group's members and its offsets (14, 15, 38; `ConsumerManageProcessor.java`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.channel import Channel
from rmqd.broker.reply import Processors, Refusal, Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.group import GetConsumerListByGroupResponseBody
from rmqd.wire.headers.group import GetConsumerListByGroupRequestHeader
from rmqd.wire.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class ConsumerManageProcessor:
    """What members ask about their group."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
        }

    def consumer_list(self, channel: Channel, request: RemotingCommand) -> Reply:
        """38: client ids."""
        header = GetConsumerListByGroupRequestHeader.from_ext_fields(request.ext_fields)
        info = self._broker.consumers.get(header.consumer_group)
        if info is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
        return Reply(body=GetConsumerListByGroupResponseBody(tuple(info.client_ids)).to_json())

    def query_offset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """14: the committed offset; 0 for a new group in a queue that still has its first message."""
        header = QueryConsumerOffsetRequestHeader.from_ext_fields(request.ext_fields)
        broker = self._broker
        offset = broker.offsets.get(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            young = broker.store.min_offset(header.topic, header.queue_id) <= 0
            if header.set_zero_if_not_found is False or not young:
                raise Refusal(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
            offset = 0
        return Reply(ext_fields=OffsetResponseHeader(offset=offset).ext_fields())

    def update_offset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """15: commit an offset, unless an operator's reset waits to be told."""
        header = UpdateConsumerOffsetRequestHeader.from_ext_fields(request.ext_fields)
        broker, place = self._broker, (header.consumer_group, header.topic, header.queue_id)
        if broker.groups.find(header.consumer_group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!")
        if broker.topics.get(header.topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
        if broker.offsets.pending_reset(*place) is not None:
            return Reply(remark="Offset has been previously reset")
        broker.offsets.commit(*place, header.commit_offset)
        return Reply()
