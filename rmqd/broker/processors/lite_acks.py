"""Messages of lite topics: acknowledgements and changes of invisible time (`AckMessageProcessor.ackLite`,
`ChangeInvisibleTimeProcessor.processChangeInvisibleTimeForLite`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.pop.order import OrderKey
from rmqd.broker.processors.pop_checks import known_topic
from rmqd.broker.reply import Refusal, Reply
from rmqd.codes import ResponseCode
from rmqd.wire.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rmqd.wire.lite import BIND_TOPIC, queue_of
from rmqd.wire.pop import PopHandle
from rmqd.wire.topics import LIGHT_QUEUE_ID

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class LiteAcks:
    """Answers for one broker. The header's topic is the parent topic; its offset is one in the lite topic's queue."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def acknowledge(self, header: AckMessageRequestHeader) -> Reply:
        """Acknowledge a message, and open its lite topic if it was the last one."""
        broker, group = self._broker, header.consumer_group
        known_topic(broker, header.topic)
        config = broker.groups.find(group)
        if config is None or config.attributes.get(BIND_TOPIC) != header.topic:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "group type or bind topic not match.")
        key = self._key(header)
        if header.offset > broker.store.max_offset(key.topic, key.queue_id):
            raise Refusal(ResponseCode.NO_MESSAGE, "ack offset illegal.")
        handle = PopHandle.parse(header.extra_info)
        if header.queue_id != LIGHT_QUEUE_ID or not handle.is_orderly:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "ack queue illegal.")
        if header.offset < (broker.offsets.get(group, key.topic, key.queue_id) or 0):
            return Reply()
        try:
            following = broker.pop_order.acknowledge(key, header.offset, handle.pop_time)
        except KeyError:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, "ack offset illegal.") from None
        if following is not None and broker.offsets.pending_reset(group, key.topic, key.queue_id) is None:
            broker.offsets.commit(group, key.topic, key.queue_id, following)
        return Reply()

    def hide_for_longer(self, header: ChangeInvisibleTimeRequestHeader) -> Reply:
        """Hide a message for another time. With `suspend`, hide its whole pop, which then is not an attempt."""
        broker, key = self._broker, self._key(header)
        known_topic(broker, header.topic)
        if header.offset > broker.store.max_offset(key.topic, key.queue_id):
            return Reply(ResponseCode.NO_MESSAGE)
        if header.offset < (broker.offsets.get(key.group, key.topic, key.queue_id) or 0):
            return Reply()
        handle = PopHandle.parse(header.extra_info)
        until_ms = broker.now_ms() + header.invisible_time
        if header.suspend:
            broker.pop_order.suspend(key, handle.pop_time, until_ms)
        else:
            broker.pop_order.hide(key, header.offset, handle.pop_time, until_ms)
        answer = ChangeInvisibleTimeResponseHeader(
            pop_time=handle.pop_time,
            invisible_time=until_ms - handle.pop_time,
            revive_qid=handle.revive_queue_id,
        )
        return Reply(ext_fields=answer.ext_fields())

    def _key(self, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader) -> OrderKey:
        queue = queue_of(header.topic, header.lite_topic or "", self._broker.name)
        return OrderKey(queue.topic, header.consumer_group, queue.queue_id)
