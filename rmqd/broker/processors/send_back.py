"""Send-backs of messages by consumers (`AbstractSendMessageProcessor.java`)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from rmqd.broker.channel import Channel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.processors.send import DLQ_QUEUES, HEEDS_MAX_RECONSUME_TIMES
from rmqd.broker.reply import SEE_FAQ, Refusal, Reply
from rmqd.broker.system_topics import READ_WRITE
from rmqd.broker.topics import UNIT_SUB
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import InvalidMessageError
from rmqd.wire.bodies.route import PERM_WRITE
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.send import ConsumerSendMsgBackRequestHeader
from rmqd.wire.messages.encode import StoredMessage, decode_record
from rmqd.wire.messages.message_id import offset_message_id, parse_host
from rmqd.wire.messages.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT
from rmqd.wire.messages.sys_flag import INNER_BATCH
from rmqd.wire.topics import dlq_topic, retry_topic

FIRST_DELAY_LEVEL: Final = 3


class SendBackProcessor(RequestProcessor):
    """Stores a message that was sent back again: as a delayed retry, or as a dead letter."""

    @answers(RequestCode.CONSUMER_SEND_MSG_BACK)
    def send_back(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CONSUMER_SEND_MSG_BACK (36). The commit log offset identifies the message; its other fields are ignored."""
        header = ConsumerSendMsgBackRequestHeader.from_ext_fields(request.ext_fields)
        broker, group = self._broker, header.group
        config = broker.groups.find(group)
        if config is None:
            remark = f"subscription group not exist, {group} {SEE_FAQ}"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not broker.settings.brokerPermission & PERM_WRITE:
            host = broker.address.rpartition(":")[0]
            raise Refusal(ResponseCode.NO_PERMISSION, f"the broker[{host}] sending message is forbidden")
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
        most = config.retry_max_times
        if header.max_reconsume_times is not None and request.version >= HEEDS_MAX_RECONSUME_TIMES:
            most = header.max_reconsume_times
        message = decode_record(record)
        if message.sys_flag & INNER_BATCH:  # a retry topic has no queues for batches
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


def _again(message: StoredMessage, topic: str, queue_id: int, level: int) -> StoredMessage:
    properties = dict(message.properties)
    properties.setdefault(RETRY_TOPIC, message.topic)
    properties[WAIT] = "false"
    properties[DELAY] = str(level)
    if not properties.get(ORIGIN_MESSAGE_ID, "").strip():
        properties[ORIGIN_MESSAGE_ID] = offset_message_id(parse_host(message.store_host), message.commit_log_offset)
    return replace(
        message,
        topic=topic,
        queue_id=queue_id,
        reconsume_times=message.reconsume_times + 1,
        properties=properties,
    )
