"""Administrators' requests about topics, static topics and the ends of queues (`AdminBrokerProcessor.java`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rmqd.broker.broker_settings import TopicAttributeError, apply_attribute_changes, parse_attributes
from rmqd.broker.peer_channel import NO_CODE, Channel, Refusal, Reply
from rmqd.broker.processors.processor_base import RequestProcessor, answers, is_current
from rmqd.broker.topic_registry import is_reserved, reserved_topics, topic_name_error
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire import loose_json
from rmqd.wire.bodies.config_bodies import (
    BATCH_QUEUE_TYPE,
    MESSAGE_TYPE,
    MIXED,
    QUEUE_TYPE,
    CreateTopicListRequestBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmqd.wire.bodies.json_body import DataVersion
from rmqd.wire.bodies.route_data import TopicList, TopicQueueMappingDetail
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers import group_headers, topic_headers
from rmqd.wire.topics import pop_retry_topic, pop_retry_topic_v2

_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
_PAGE: Final = 2000  # Java: splitMetadataSize
_DONE: Final = Reply(remark=NO_CODE)


class TopicProcessor(RequestProcessor):
    """The processor of administrators' requests about topics and static topics."""

    @answers(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def create(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_AND_CREATE_TOPIC (17): create or change a topic."""
        header = topic_headers.CreateTopicRequestHeader.from_ext_fields(request.ext_fields)
        if header.topic_filter_type not in _FILTER_TYPES:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{header.topic_filter_type}] value invalid")
        self._check_name(header.topic)
        try:
            changes = parse_attributes(header.attributes or "")
        except TopicAttributeError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from error
        self._put(self._checked(replace(_config_of(header, changes), order=header.order)))
        return _DONE

    @answers(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    def create_topics(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_AND_CREATE_TOPIC_LIST (18): create or change several topics; none if a topic is rejected."""
        configs = CreateTopicListRequestBody.from_json(request.body).topic_config_list
        for config in configs:
            self._check_name(config.topic_name)
        for config in [self._checked(config) for config in configs]:
            self._put(config)
        return _DONE

    @answers(RequestCode.DELETE_TOPIC_IN_BROKER)
    def delete(self, channel: Channel, request: RemotingCommand) -> Reply:
        """DELETE_TOPIC_IN_BROKER (215): delete a topic with its messages, offsets and pops, and its pop retry topics.

        A missing topic is not an error.
        """
        topic = topic_headers.DeleteTopicRequestHeader.from_ext_fields(request.ext_fields).topic
        if not topic.strip():
            raise Refusal(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        self._refuse_reserved(topic)
        for group in self._broker.offsets.groups_of(topic):
            self._delete(pop_retry_topic(group, topic))
            self._delete(pop_retry_topic_v2(group, topic))
        self._delete(topic)
        return Reply()

    @answers(RequestCode.GET_TOPIC_CONFIG)
    def topic(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_TOPIC_CONFIG (351) with a topic's configuration; if `lo` is set, also a static topic's mapping."""
        header = topic_headers.GetTopicConfigRequestHeader.from_ext_fields(request.ext_fields)
        config = self._broker.topics.get(header.topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}")
        detail = self._broker.static_topics.get(header.topic) if header.lo else None
        if detail is None:
            return Reply(body=config.to_json())
        return Reply(body=loose_json.dumps({**config.to_dict(), "mappingDetail": detail.to_dict()}, bare_keys=True))

    @answers(RequestCode.GET_ALL_TOPIC_CONFIG)
    def all_topics(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_ALL_TOPIC_CONFIG (21) with all topics, or with a page of topics if the client requests pages."""
        header = topic_headers.GetAllTopicConfigRequestHeader.from_ext_fields(request.ext_fields)
        broker = self._broker
        topics, version = broker.topics.all(), DataVersion(broker.topics.revision, int(broker.booted_at * 1000))
        shown = topics
        if (header.topic_seq, header.data_version, header.max_topic_num) != (None, None, None):
            first = header.topic_seq or 0 if is_current(header.data_version, version) else 0
            most = _PAGE if header.max_topic_num is None else min(_PAGE, header.max_topic_num)
            shown = {name: topics[name] for name in sorted(topics)[first : first + most]}
        body = TopicConfigSerializeWrapper(shown, version).to_json()
        return Reply(ext_fields={"totalTopicNum": str(len(topics))}, body=body)

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305) with the names of the broker's own topics."""
        return Reply(body=TopicList(reserved_topics(self._broker.settings)).to_json())

    @answers(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)
    def create_static(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_AND_CREATE_STATIC_TOPIC (513): create or change a static topic. Existing attributes stay."""
        broker = self._broker
        header = topic_headers.CreateTopicRequestHeader.from_ext_fields(request.ext_fields)
        self._check_name(header.topic)
        detail = replace(TopicQueueMappingDetail.from_json(request.body), topic=header.topic)
        detail = broker.static_topics.merge_request(detail, broker.name, force=header.force is True)
        known = broker.topics.get(header.topic)
        self._put(_config_of(header, {} if known is None else known.attributes))
        broker.static_topics.put(detail)
        return _DONE

    def _check_name(self, topic: str) -> None:
        fault = topic_name_error(topic)
        if fault:
            raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
        self._refuse_reserved(topic)

    def _refuse_reserved(self, topic: str) -> None:
        if is_reserved(topic, self._broker.settings):
            raise Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")

    def _checked(self, config: TopicConfig) -> TopicConfig:
        """Return a topic's new configuration. `config.attributes` are changes, with `+` or `-` before the key."""
        if config.attributes.get(f"+{MESSAGE_TYPE}") == MIXED:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        known = self._broker.topics.get(config.topic_name)
        try:
            attributes = apply_attribute_changes(None if known is None else known.attributes, config.attributes)
        except TopicAttributeError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return replace(config, attributes=attributes)

    def _delete(self, topic: str) -> None:
        broker = self._broker
        broker.topics.delete(topic)
        broker.static_topics.delete(topic)
        broker.offsets.forget(topic=topic)
        broker.revive.forget(topic=topic)
        broker.pop_order.forget(topic=topic)
        for queue in broker.store.light.names_of_parent_topic(topic):
            broker.offsets.forget(topic=queue)
            broker.pop_order.forget(topic=queue)
            broker.store.light.delete(queue)
        broker.store.delete_topic(topic)
        broker.stats.forget_topic(topic)

    def _put(self, config: TopicConfig) -> None:
        if config != self._broker.topics.get(config.topic_name):
            self._broker.topics.put(config)


def _config_of(header: topic_headers.CreateTopicRequestHeader, attributes: dict[str, str]) -> TopicConfig:
    return TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag or 0,
        attributes=attributes,
    )


_NO_TIME: Final = -1
_NEVER: Final = -1  # the min offset of a batch queue that never had a message


class QueueEndsProcessor(RequestProcessor):
    """The processor of requests for the first and next offset of a queue, and for offsets by time."""

    @answers(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_MAX_OFFSET (30) with the offset of a queue's next message."""
        header = group_headers.GetMaxOffsetRequestHeader.from_ext_fields(request.ext_fields)
        return _offset(self._broker.store.max_offset(header.topic, header.queue_id))

    @answers(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_MIN_OFFSET (31) with the offset of a queue's first message that is still kept."""
        header = group_headers.GetMinOffsetRequestHeader.from_ext_fields(request.ext_fields)
        config, queue = self._broker.topics.get(header.topic), self._broker.store.queue(header.topic, header.queue_id)
        never = _NEVER if config is not None and config.attributes.get(QUEUE_TYPE) == BATCH_QUEUE_TYPE else 0
        reply = _offset(never if queue is None else queue.min_offset)
        return reply._replace(remark="")  # the real broker's response has this empty remark

    @answers(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer SEARCH_OFFSET_BY_TIMESTAMP (29) with the offset of the first message stored at or after a time."""
        header = group_headers.SearchOffsetRequestHeader.from_ext_fields(request.ext_fields)
        upper = (header.boundary_type or "").lower() == "upper"
        return _offset(self._broker.store.offset_by_time(header.topic, header.queue_id, header.timestamp, upper=upper))

    @answers(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_EARLIEST_MSG_STORETIME (32) with the store time of a queue's first message that is still kept."""
        header = group_headers.GetEarliestMsgStoretimeRequestHeader.from_ext_fields(request.ext_fields)
        store, queue = self._broker.store, (header.topic, header.queue_id)
        entry = store.entry(*queue, store.min_offset(*queue))
        timestamp = _NO_TIME if entry is None else entry.store_timestamp
        return Reply(ext_fields=group_headers.GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp).ext_fields())


def _offset(offset: int) -> Reply:
    return Reply(ext_fields=group_headers.OffsetResponseHeader(offset=offset).ext_fields())
