"""Recalls of timer messages by producers (`RecallMessageProcessor.java`)."""

from __future__ import annotations

from typing import Final

from rmqd.broker.channel import Channel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.processors.send import REGION
from rmqd.broker.reply import NO_CODE, Refusal, Reply
from rmqd.broker.timers import delete_key
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ProtocolError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.recall import RecallMessageRequestHeader, RecallMessageResponseHeader
from rmqd.wire.messages.encode import StoredMessage
from rmqd.wire.messages.properties import (
    BORN_TIMESTAMP,
    MSG_REGION,
    PRODUCER_GROUP,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
)
from rmqd.wire.recall import RecallHandle

_TAG: Final = "_RECALL_TAG_"
_FIELDS: Final = {MSG_REGION: REGION}
"""Ext fields of all responses, including refusals."""


class RecallProcessor(RequestProcessor):
    """Answers recalls. A recall is a timer message itself, due in the same second as the message that it recalls."""

    @answers(RequestCode.RECALL_MESSAGE)
    def recall(self, channel: Channel, request: RemotingCommand) -> Reply:
        """RECALL_MESSAGE (370): recall a timer message. As in RocketMQ, the message need not exist."""
        header, broker = RecallMessageRequestHeader.from_ext_fields(request.ext_fields), self._broker
        if not broker.settings.recallMessageEnable:
            raise _failed(ResponseCode.NO_PERMISSION, "operation is forbidden")
        if broker.topics.get(header.topic) is None:
            raise _failed(ResponseCode.TOPIC_NOT_EXIST, f"the topic[{header.topic}] not exist")
        handle, now_ms = self._handle(header), broker.now_ms()
        properties = {
            TAGS: _TAG,
            TIMER_DEL_UNIQKEY: delete_key(handle.topic, handle.msg_id, broker.settings),
            UNIQ_KEY: handle.msg_id,
            TIMER_DELIVER_MS: str(handle.deliver_at_ms),
            BORN_TIMESTAMP: str(now_ms),
        }
        if header.producer_group is not None:
            properties[PRODUCER_GROUP] = header.producer_group
        broker.schedule.put(
            StoredMessage(
                topic=handle.topic,
                body=b"0",
                born_timestamp=now_ms,
                born_host=channel.address,
                properties=properties,
            )
        )
        return Reply(
            remark=NO_CODE, ext_fields=_FIELDS | RecallMessageResponseHeader(msg_id=handle.msg_id).ext_fields()
        )

    def _handle(self, header: RecallMessageRequestHeader) -> RecallHandle:
        """Return the handle of a request if its message can still be recalled. Raises Refusal."""
        broker = self._broker
        try:
            handle = RecallHandle.parse(header.recall_handle)
        except ProtocolError:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid", _FIELDS) from None
        if handle.topic != header.topic:
            raise _failed(ResponseCode.ILLEGAL_OPERATION, "topic not match")
        if handle.broker_name != broker.name:
            raise _failed(ResponseCode.ILLEGAL_OPERATION, "broker service not available")
        if not 0 < handle.deliver_at_ms - broker.now_ms() < broker.settings.timerMaxDelaySec * 1000:
            raise _failed(ResponseCode.ILLEGAL_OPERATION, "timestamp invalid")
        return handle


def _failed(code: ResponseCode, why: str) -> Refusal:
    return Refusal(code, f"recall failed, {why}", _FIELDS)
