"""Administrators' requests to create static topics (`AdminBrokerProcessor.updateAndCreateStaticTopic`)."""

from __future__ import annotations

from dataclasses import replace

from rmqd.broker.channel import Channel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import NO_CODE, Refusal, Reply
from rmqd.broker.system_topics import is_reserved
from rmqd.broker.topics import fault_of_topic
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.settings import TopicConfig
from rmqd.wire.bodies.static_topic import TopicQueueMappingDetail
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.admin import CreateTopicRequestHeader


class StaticTopicProcessor(RequestProcessor):
    """Answers administrators' requests about static topics."""

    @answers(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)
    def create(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_AND_CREATE_STATIC_TOPIC (513): create or change a static topic. Existing attributes stay."""
        broker = self._broker
        header = CreateTopicRequestHeader.from_ext_fields(request.ext_fields)
        topic = header.topic
        if fault := fault_of_topic(topic):
            raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
        if is_reserved(topic, broker.settings):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")
        detail = TopicQueueMappingDetail.from_json(request.body)
        detail = broker.static_topics.checked(replace(detail, topic=topic), broker.name, force=header.force is True)
        known = broker.topics.get(topic)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            attributes={} if known is None else known.attributes,
        )
        if config != known:
            broker.topics.put(config)
        broker.static_topics.put(detail)
        return Reply(remark=NO_CODE)
