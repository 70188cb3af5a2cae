"""Messages from producers, and send-backs by consumers.

Java: `SendMessageProcessor`, `AbstractSendMessageProcessor`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmqd.broker.peer_channel import SEE_FAQ, Channel, Refusal, Reply
from rmqd.broker.pop.pop_orders import queue_by_priority
from rmqd.broker.processors.processor_base import RequestProcessor, answers
from rmqd.broker.schedule import REQUESTED, delay_level
from rmqd.broker.topic_registry import NOT_ALLOWED_SEND_TOPICS, READ_WRITE, UNIT, UNIT_SUB, topic_name_error
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import InvalidMessageError, ProtocolError
from rmqd.wire.bodies.config_bodies import BATCH_QUEUE_TYPE, QUEUE_TYPE, SubscriptionGroupConfig, TopicConfig
from rmqd.wire.bodies.route_data import PERM_READ, PERM_WRITE
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.send_headers import (
    ConsumerSendMsgBackRequestHeader,
    ReceivedSendHeader,
    SendMessageResponseHeader,
)
from rmqd.wire.lite_topic import RecallHandle, lite_topic_queue
from rmqd.wire.messages import properties as names
from rmqd.wire.messages.decode import decode_record
from rmqd.wire.messages.encode import StoredMessage, decode_batch
from rmqd.wire.messages.message_id import UniqueKeys, offset_message_id, parse_host
from rmqd.wire.topics import RETRY_PREFIX, dlq_topic, retry_topic

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


REGION: Final = "DefaultRegion"  # Java: regionId
DLQ_QUEUES: Final = 1
FIRST_DELAY_LEVEL: Final = 3
_FIELDS: Final = {names.MSG_REGION: REGION, names.TRACE_ON: "true"}
"""Ext fields of all responses to sends, including refusals, and properties of all messages but batch members."""
_MAX_V1_TOPIC: Final = 127


class SendProcessor(RequestProcessor):
    """The processor of sends and send-backs. It rejects transaction messages, which this broker cannot commit."""

    def __init__(self, broker: BrokerController) -> None:
        super().__init__(broker)
        self._store_host = parse_host(broker.address)
        self._unique_keys = UniqueKeys(self._store_host[:-4], os.getpid(), id(self))

    @answers(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    def send(self, channel: Channel, request: RemotingCommand) -> Reply:
        """SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320): store a message or a batch."""
        header = ReceivedSendHeader.from_request(request)
        body = request.body
        if not body:
            raise ProtocolError("the message has no body")
        try:
            config = self._topic(channel, header)
            if header.batch:
                return self._send_batch(channel, header, config, body)
            return self._send_one(channel, header, config, body)
        except InvalidMessageError:
            raise self._illegal() from None
        except Refusal as refusal:
            return Reply(refusal.code, refusal.remark, _FIELDS)

    @answers(RequestCode.CONSUMER_SEND_MSG_BACK)
    def send_back(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CONSUMER_SEND_MSG_BACK (36): store a message again, as a delayed retry or as a dead letter.

        Only the commit log offset identifies the message. The request's message id and topic are ignored.
        """
        header = ConsumerSendMsgBackRequestHeader.from_ext_fields(request.ext_fields)
        broker, group = self._broker, header.group
        config = self._group(group)
        if not broker.settings.brokerPermission & PERM_WRITE:
            raise Refusal(ResponseCode.NO_PERMISSION, f"the broker[{self._broker.host}] sending message is forbidden")
        if config.retry_queue_nums <= 0:
            return Reply()
        topic = retry_topic(group)
        topic_config = broker.topics.create_in_send_back(
            topic, config.retry_queue_nums, READ_WRITE, UNIT_SUB if header.unit_mode else 0
        )
        if not topic_config.perm & PERM_WRITE:
            raise Refusal(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
        record = broker.store.record(header.offset)
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        most = config.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        message = decode_record(record)
        if message.sys_flag & names.INNER_BATCH:  # a retry topic has no queues for batches
            raise Refusal(ResponseCode.SYSTEM_ERROR, "MESSAGE_ILLEGAL")
        queue_id, level = random.randrange(config.retry_queue_nums), header.delay_level
        if message.reconsume_times >= most or level < 0:
            topic, queue_id, level = dlq_topic(group), 0, 0
            broker.topics.create_in_send_back(topic, DLQ_QUEUES)
        elif level == 0:
            level = FIRST_DELAY_LEVEL + message.reconsume_times
        try:
            broker.schedule.put(_again(message, topic, queue_id, level))
        except InvalidMessageError:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "PROPERTIES_SIZE_EXCEEDED") from None
        return Reply()

    def _send_one(self, channel: Channel, header: ReceivedSendHeader, config: TopicConfig, body: bytes) -> Reply:
        broker, topic = self._broker, header.topic
        queue_id = _queue(header, config)
        properties = names.parse_properties(header.properties)
        properties.pop(names.POP_CK, None)
        if properties.get(names.LITE_TOPIC):
            properties[names.INNER_MULTI_DISPATCH] = lite_topic_queue(
                topic, properties[names.LITE_TOPIC], self._broker.name
            ).topic
        properties |= _FIELDS
        if (by_priority := queue_by_priority(properties, config)) is not None:
            queue_id = by_priority
        if topic.startswith(RETRY_PREFIX) and self._is_dead_letter(header):
            topic, queue_id = dlq_topic(topic.removeprefix(RETRY_PREFIX)), 0
            properties[names.DELAY] = "-1"
            broker.topics.create_in_send_back(topic, DLQ_QUEUES)
        if names.UNIQ_KEY not in properties:
            properties[names.UNIQ_KEY] = self._unique_keys.next(broker.clock.wall())
        properties[names.CLUSTER] = broker.settings.brokerClusterName
        self._check(header, properties, topic, body)
        message = _received(channel, header, topic, queue_id, body, properties)
        stored = broker.schedule.put(message)
        reply = SendMessageResponseHeader(
            msg_id=offset_message_id(self._store_host, stored.result.commit_log_offset),
            queue_id=queue_id,
            queue_offset=stored.result.queue_offset,
            transaction_id=properties[names.UNIQ_KEY],
            recall_handle=None if stored.message is message else self._recall_handle(stored.message),
        )
        return Reply(ext_fields=_FIELDS | reply.ext_fields())

    def _send_batch(self, channel: Channel, header: ReceivedSendHeader, config: TopicConfig, body: bytes) -> Reply:
        """Store the messages of a batch with unchanged properties. A single message gets more, such as _FIELDS."""
        topic, queue_id = header.topic, _queue(header, config)
        if len(topic) > _MAX_V1_TOPIC:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(topic)}")
        if topic.startswith(RETRY_PREFIX):
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic}")
        properties = names.parse_properties(header.properties)
        later = delay_level(properties) > 0 or not REQUESTED.isdisjoint(properties)
        if later or header.sys_flag & (names.TRANSACTION_MASK | names.INNER_BATCH):
            raise self._illegal()
        if len(body) > self._broker.settings.maxMessageSize:
            raise ProtocolError("message body size exceeded")
        members = decode_batch(body)
        if config.attributes.get(QUEUE_TYPE) == BATCH_QUEUE_TYPE and names.UNIQ_KEY in properties:
            return self._store_as_one(channel, header, body, queue_id, len(members))
        messages = (
            replace(_received(channel, header, topic, queue_id, member.body, member.properties), flag=member.flag)
            for member in members
        )
        stored = [self._broker.store.put(message) for message in messages]
        reply = SendMessageResponseHeader(
            msg_id=",".join(offset_message_id(self._store_host, one.commit_log_offset) for one in stored),
            queue_id=queue_id,
            queue_offset=stored[0].queue_offset,
            transaction_id=properties.get(names.UNIQ_KEY),
        )
        return Reply(ext_fields=_FIELDS | reply.ext_fields())

    def _store_as_one(
        self, channel: Channel, header: ReceivedSendHeader, body: bytes, queue_id: int, members: int
    ) -> Reply:
        """Store a batch as one record. Consumers split it."""
        properties = names.parse_properties(header.properties)
        unique_key = properties[names.UNIQ_KEY]
        properties |= _FIELDS | {names.CLUSTER: self._broker.settings.brokerClusterName, names.INNER_NUM: str(members)}
        message = _received(channel, header, header.topic, queue_id, body, properties)
        flags = header.sys_flag | names.NEED_UNWRAP | names.INNER_BATCH
        stored = self._broker.store.put(replace(message, sys_flag=flags), members=members)
        reply = SendMessageResponseHeader(
            msg_id=offset_message_id(self._store_host, stored.commit_log_offset),
            queue_id=queue_id,
            queue_offset=stored.queue_offset,
            transaction_id=unique_key,
            batch_uniq_id=unique_key,
        )
        return Reply(ext_fields=_FIELDS | reply.ext_fields())

    def _topic(self, channel: Channel, header: ReceivedSendHeader) -> TopicConfig:
        """Return the topic of a send, creating a missing topic if that is allowed. Raises Refusal."""
        topics, topic = self._broker.topics, header.topic
        config = topics.get(topic)
        if config is not None and config.order and not self._broker.settings.brokerPermission & PERM_WRITE:
            # only the broker's permission is checked; producers see the topic's permission in the route
            raise Refusal(ResponseCode.NO_PERMISSION, f"the broker[{self._broker.host}] sending message is forbidden")
        if config is None and (fault := topic_name_error(topic)):
            raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
        if topic in NOT_ALLOWED_SEND_TOPICS:
            raise Refusal(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if config is None:
            config = self._create_topic(header)
        if header.queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            remark = f"request queueId[{header.queue_id}] is illegal, {_written(config)} Producer: {channel.address}"
            raise Refusal(ResponseCode.INVALID_PARAMETER, remark)
        return config

    def _create_topic(self, header: ReceivedSendHeader) -> TopicConfig:
        topic = header.topic
        if header.default_topic is None:
            raise ProtocolError(f"topic {topic} does not exist, and the request has no default topic to create it from")
        is_retry = topic.startswith(RETRY_PREFIX)
        unit = (UNIT_SUB if is_retry else UNIT) if header.unit_mode else 0
        config = self._broker.topics.create_in_send(topic, header.default_topic, header.default_topic_queue_nums, unit)
        if config is None and is_retry:
            config = self._broker.topics.create_in_send_back(topic, 1, READ_WRITE, unit)
        if config is None:
            remark = f"topic[{topic}] not exist, apply first please!{SEE_FAQ}"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        return config

    def _is_dead_letter(self, header: ReceivedSendHeader) -> bool:
        """Return whether a message that a consumer sent to its retry topic has used all its attempts."""
        group = header.topic.removeprefix(RETRY_PREFIX)
        config = self._group(group)
        most = config.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        # an orderly group, which has locks, sends a message to its retry topic only after the last attempt
        return header.reconsume_times > most or self._broker.locks.has_any(group)

    def _group(self, group: str) -> SubscriptionGroupConfig:
        config = self._broker.groups.find_or_create(group)
        if config is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group} {SEE_FAQ}")
        return config

    def _check(self, header: ReceivedSendHeader, properties: Mapping[str, str], topic: str, body: bytes) -> None:
        """Raise Refusal if RocketMQ's store would reject the message, or if it is part of a transaction."""
        if properties.get(names.TRANSACTION_PREPARED, "").lower() == "true":
            old_client = header.reconsume_times > 0 and delay_level(properties) > 0
            transactional = not old_client
        else:
            transactional = header.sys_flag & names.TRANSACTION_MASK not in (0, names.TRANSACTION_COMMIT)
        if transactional:
            remark = f"the broker[{self._broker.host}] sending transaction message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, remark)
        if (
            len(body) > self._broker.settings.maxMessageSize
            or (len(topic) > _MAX_V1_TOPIC and not topic.startswith(RETRY_PREFIX))
            or header.sys_flag & names.INNER_BATCH
            or names.INNER_NUM in properties
        ):
            raise self._illegal()

    def _recall_handle(self, waiting: StoredMessage) -> str | None:
        """Return the handle that a producer needs to recall a timer message; None for other messages."""
        properties = waiting.properties
        out_ms, topic = properties.get(names.TIMER_OUT_MS), properties[names.REAL_TOPIC]
        if out_ms is None or topic.startswith(RETRY_PREFIX):
            return None
        return str(RecallHandle(topic, self._broker.name, int(out_ms) + 1, properties[names.UNIQ_KEY]))

    def _illegal(self) -> Refusal:
        return Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{self._broker.settings.maxMessageSize}B, msg properties length limit 32KB.",
            _FIELDS,
        )


def _queue(header: ReceivedSendHeader, config: TopicConfig) -> int:
    """Return the queue id of a send. A negative id stands for a random queue. Raises ProtocolError without queues."""
    if header.queue_id >= 0:
        return header.queue_id
    if config.write_queue_nums < 1:
        raise ProtocolError(f"topic {config.topic_name} has no queue to write to")
    return random.randrange(config.write_queue_nums)


def _written(config: TopicConfig) -> str:
    """Return a topic's settings as Java writes them into remarks."""
    perm = ("R" if config.perm & PERM_READ else "-") + ("W" if config.perm & PERM_WRITE else "-")
    perm += "X" if config.perm & 1 else "-"
    attributes = ", ".join(f"{key}={value}" for key, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, topicFilterType={config.topic_filter_type}, "
        f"topicSysFlag={config.topic_sys_flag}, order={str(config.order).lower()}, attributes={{{attributes}}}]"
    )


def _received(
    channel: Channel, header: ReceivedSendHeader, topic: str, queue_id: int, body: bytes, properties: Mapping[str, str]
) -> StoredMessage:
    """Return the message of a send request, with the client's address as its born host."""
    return StoredMessage(
        topic=topic,
        body=body,
        queue_id=queue_id,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=channel.address,
        reconsume_times=header.reconsume_times,
        properties=properties,
    )


def _again(message: StoredMessage, topic: str, queue_id: int, level: int) -> StoredMessage:
    properties = dict(message.properties)
    properties.setdefault(names.RETRY_TOPIC, message.topic)
    properties[names.WAIT] = "false"
    properties[names.DELAY] = str(level)
    if not properties.get(names.ORIGIN_MESSAGE_ID, "").strip():
        properties[names.ORIGIN_MESSAGE_ID] = offset_message_id(
            parse_host(message.store_host), message.commit_log_offset
        )
    return replace(
        message, topic=topic, queue_id=queue_id, reconsume_times=message.reconsume_times + 1, properties=properties
    )
