"""Acknowledgements and changes of invisible time, also for lite topics.

Java: `AckMessageProcessor`, `ChangeInvisibleTimeProcessor`.
"""

from __future__ import annotations

from typing import Final

from rmqd.broker.held_requests import GroupQueue
from rmqd.broker.peer_channel import NO_CODE, Channel, Refusal, Reply, set_refusal_fields
from rmqd.broker.pop.revive import HiddenPop
from rmqd.broker.processors.pop_processor import illegal_queue, known_topic
from rmqd.broker.processors.processor_base import RequestProcessor, answers
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.pop_bodies import BatchAckMessageRequestBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rmqd.wire.lite_topic import BIND_TOPIC_ATTRIBUTE, lite_topic_queue
from rmqd.wire.receipt_handle import ORDER_REVIVE_QUEUE, PopHandle
from rmqd.wire.topics import LIGHT_QUEUE_ID

AckOrChange = AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader
"""For a lite topic, the header's topic is the parent topic, and its offset belongs to the lite topic's queue."""


class AckProcessor(RequestProcessor):
    """The processor of acknowledgements and changes of invisible time. An ack with an outdated handle has no effect."""

    @answers(RequestCode.ACK_MESSAGE)
    def acknowledge(self, channel: Channel, request: RemotingCommand) -> Reply:
        """ACK_MESSAGE (200051): acknowledge one popped message."""
        header = AckMessageRequestHeader.from_ext_fields(request.ext_fields)
        if header.lite_topic:
            return self._acknowledge_lite(header)
        low, high = self._ends(channel, header)
        if not low <= header.offset <= high:
            remark = (
                f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, store:{low}~{high}"
            )
            raise Refusal(ResponseCode.NO_MESSAGE, remark)
        handle = PopHandle.parse(header.extra_info)
        popped = _popped(header, handle)
        if handle.is_orderly:
            self._acknowledge_in_order(channel, popped)
        else:
            self._broker.revive.settle(popped)
        return Reply()

    @answers(RequestCode.BATCH_ACK_MESSAGE)
    def acknowledge_many(self, channel: Channel, request: RemotingCommand) -> Reply:
        """BATCH_ACK_MESSAGE (200151): acknowledge many popped messages. Offsets outside the queue are ignored."""
        acks = BatchAckMessageRequestBody.from_json(request.body).acks if request.body else ()
        if not acks:
            return Reply(ResponseCode.NO_MESSAGE)
        for ack in acks:
            topic, group = ack.retry.real_topic(ack.consumer_group, ack.topic), ack.consumer_group
            store = self._broker.store
            low, high = store.min_offset(topic, ack.queue_id), store.max_offset(topic, ack.queue_id)
            for offset in ack.offsets:
                popped = HiddenPop(topic, group, ack.queue_id, offset, ack.pop_time, ack.invisible_time)
                if not low <= offset <= high:
                    continue
                if ack.revive_queue_id == ORDER_REVIVE_QUEUE:
                    self._acknowledge_in_order(channel, popped)
                else:
                    self._broker.revive.settle(popped)
        return Reply()

    @answers(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change_invisible_time(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CHANGE_MESSAGE_INVISIBLETIME (200053): hide a message for a new time span, from this moment on.

        As on RocketMQ's broker, this also hides a message that was acknowledged or is visible again.
        """
        header = ChangeInvisibleTimeRequestHeader.from_ext_fields(request.ext_fields)
        if header.lite_topic:
            return self._hide_lite(header)
        broker = self._broker
        with set_refusal_fields(_NOTHING_HIDDEN):
            low, high = self._ends(channel, header)
        if not low <= header.offset < high:
            return Reply(ResponseCode.NO_MESSAGE, NO_CODE, _NOTHING_HIDDEN)
        handle, now_ms = PopHandle.parse(header.extra_info), broker.now_ms()
        popped = _popped(header, handle)
        if handle.is_orderly:
            committed = broker.offsets.get(header.consumer_group, header.topic, header.queue_id)
            if committed is not None and header.offset < committed:
                return Reply(remark=NO_CODE, ext_fields=_NOTHING_HIDDEN)
            until_ms = now_ms + header.invisible_time
            broker.pop_order.hide(_order_key(popped), header.offset, handle.pop_time, until_ms)
            fields = _hidden(handle.pop_time, until_ms - handle.pop_time, handle.revive_queue_id)
            return Reply(remark=NO_CODE, ext_fields=fields)
        broker.revive.settle(popped)
        if broker.groups.get(header.consumer_group) is not None:  # without the group, members could not pop it again
            broker.revive.hide((popped._replace(pop_time=now_ms, invisible_time=header.invisible_time),))
        return Reply(remark=NO_CODE, ext_fields=_hidden(now_ms, header.invisible_time, handle.revive_queue_id))

    def _acknowledge_lite(self, header: AckMessageRequestHeader) -> Reply:
        """Acknowledge a message of a lite topic. A pop's last acknowledgement frees the topic for the next pop."""
        broker, key = self._broker, self._lite_key(header)
        known_topic(broker, header.topic)
        config = broker.groups.find_or_create(key.group)
        if config is None or config.attributes.get(BIND_TOPIC_ATTRIBUTE) != header.topic:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "group type or bind topic not match.")
        if header.offset > broker.store.max_offset(key.topic, key.queue_id):
            raise Refusal(ResponseCode.NO_MESSAGE, "ack offset illegal.")
        handle = PopHandle.parse(header.extra_info)
        if header.queue_id != LIGHT_QUEUE_ID or not handle.is_orderly:
            raise Refusal(ResponseCode.INVALID_PARAMETER, "ack queue illegal.")
        if not self._acknowledge_next(key, header.offset, handle.pop_time):
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, "ack offset illegal.")
        return Reply()

    def _hide_lite(self, header: ChangeInvisibleTimeRequestHeader) -> Reply:
        """Hide a message of a lite topic; with `suspend`, all messages of its pop, without counting an attempt."""
        broker, key = self._broker, self._lite_key(header)
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
        return Reply(ext_fields=_hidden(handle.pop_time, until_ms - handle.pop_time, handle.revive_queue_id))

    def _lite_key(self, header: AckOrChange) -> GroupQueue:
        queue = lite_topic_queue(header.topic, header.lite_topic or "", self._broker.name)
        return GroupQueue(queue.topic, header.consumer_group, queue.queue_id)

    def _ends(self, channel: Channel, header: AckOrChange) -> tuple[int, int]:
        """Return the min offset and max offset of the request's queue. Raises Refusal if the queue is missing."""
        config = known_topic(self._broker, header.topic)
        if not 0 <= header.queue_id < config.read_queue_nums:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, illegal_queue(channel, header, config))
        store = self._broker.store
        return store.min_offset(header.topic, header.queue_id), store.max_offset(header.topic, header.queue_id)

    def _acknowledge_in_order(self, channel: Channel, popped: HiddenPop) -> None:
        key = _order_key(popped)
        if not self._acknowledge_next(key, popped.offset, popped.pop_time):
            committed = self._broker.offsets.get(popped.group, popped.topic, popped.queue_id)
            queue, old = "@".join(map(str, key)), -1 if committed is None else committed
            remark = f"offset is illegal, key:{queue}, old:{old}, commit:{popped.offset}, next:-1, /{channel.address}"
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, remark)

    def _acknowledge_next(self, key: GroupQueue, offset: int, pop_time: int) -> bool:
        """Acknowledge a message of an orderly pop, and commit the new offset. Returns False if it was not popped."""
        offsets, queue = self._broker.offsets, (key.group, key.topic, key.queue_id)
        if offset < (offsets.get(*queue) or 0):
            return True
        try:
            following = self._broker.pop_order.acknowledge(key, offset, pop_time)
        except KeyError:
            return False
        if following is not None and offsets.pending_reset(*queue) is None:
            offsets.commit(*queue, following)
        return True


def _popped(header: AckOrChange, handle: PopHandle) -> HiddenPop:
    return HiddenPop(
        header.topic, header.consumer_group, header.queue_id, header.offset, handle.pop_time, handle.invisible_time
    )


def _order_key(popped: HiddenPop) -> GroupQueue:
    return GroupQueue(popped.topic, popped.group, popped.queue_id)


def _hidden(pop_time: int, invisible_time: int, revive_queue_id: int) -> dict[str, str]:
    header = ChangeInvisibleTimeResponseHeader(
        pop_time=pop_time, invisible_time=invisible_time, revive_qid=revive_queue_id
    )
    return header.ext_fields()


_NOTHING_HIDDEN: Final = _hidden(0, 0, 0)
