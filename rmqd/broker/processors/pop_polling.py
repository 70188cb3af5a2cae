"""Requests that accompany pops: peeks, notifications that a message can be popped, and the number of held pops.

Java: `PeekMessageProcessor`, `NotificationProcessor`, `PollingInfoProcessor`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from rmqd.broker.held_requests import GroupQueue, HeldRequest
from rmqd.broker.peer_channel import NO_CODE, Answer, Channel, Reply, set_refusal_fields
from rmqd.broker.processors.pop_processor import DICE, NOTHING_POPPED, QueueHeader, check_reading, retry_topic_to_read
from rmqd.broker.processors.processor_base import RequestProcessor, answers
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pop_headers import (
    NotificationRequestHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PopMessageResponseHeader,
)


class PopPollingProcessor(RequestProcessor):
    """The processor of requests about messages that a pop would return, and about held pops."""

    @answers(RequestCode.PEEK_MESSAGE)
    def peek(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer PEEK_MESSAGE (200052) with the messages that a pop would return, without hiding them."""
        header = PeekMessageRequestHeader.from_ext_fields(request.ext_fields)
        broker, rest = self._broker, 0
        with set_refusal_fields(NOTHING_POPPED):
            check_reading(broker, channel, header, "peeking")
        records: list[bytes] = []
        for topic, queue_id in self._queues(header):
            low, high = broker.store.min_offset(topic, queue_id), broker.store.max_offset(topic, queue_id)
            offset = self._place(header.consumer_group, topic, queue_id)
            rest += high - offset
            if len(records) < header.max_msg_nums:
                room = header.max_msg_nums - len(records)
                records += broker.store.get(topic, queue_id, min(max(offset, low), high), room).records
        broker.stats.count_pulled(header.consumer_group, header.topic, len(records), sum(map(len, records)))
        code = ResponseCode.SUCCESS if records else ResponseCode.PULL_NOT_FOUND
        fields = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest).ext_fields()
        return Reply(code, "FOUND" if records else "NO_MESSAGE_IN_QUEUE", fields, b"".join(records))

    @answers(RequestCode.NOTIFICATION)
    def notification(self, channel: Channel, request: RemotingCommand) -> Answer:
        """NOTIFICATION (200054): report whether a message can be popped, at once or when a message arrives."""
        header = NotificationRequestHeader.from_ext_fields({"bornTime": "0", **request.ext_fields})
        until_ms = (header.born_time or self._broker.now_ms()) + header.poll_time
        return self._notify(channel, request, header, until_ms)

    @answers(RequestCode.POLLING_INFO)
    def polling_info(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer POLLING_INFO (200055) with the number of a group's held pops for a queue."""
        header = PollingInfoRequestHeader.from_ext_fields(request.ext_fields)
        with set_refusal_fields({"pollingNum": "0"}):
            check_reading(self._broker, channel, header, "peeking")
        waiting = self._broker.held_pops.waiting_count(GroupQueue(header.topic, header.consumer_group, header.queue_id))
        return Reply(remark=NO_CODE, ext_fields={"pollingNum": str(waiting)})

    def _notify(
        self, channel: Channel, request: RemotingCommand, header: NotificationRequestHeader, until_ms: int
    ) -> Answer:
        broker = self._broker
        with set_refusal_fields({"hasMsg": "false", "pollingFull": "false"}):
            check_reading(broker, channel, header, "peeking")
        has_message, code = any(self._has_message(header, *queue) for queue in self._queues(header)), None
        if not has_message:
            place = GroupQueue(header.topic, header.consumer_group, header.queue_id)
            again = partial(self._notify, header=header, until_ms=until_ms)
            pop = HeldRequest(place, place.group, channel, request, again)
            code = broker.held_notifications.hold(pop, until_ms - broker.now_ms(), header.poll_time)
            if code is None:
                return None
        is_full = code is ResponseCode.POLLING_FULL
        fields = {"hasMsg": str(has_message).lower(), "pollingFull": str(is_full).lower()}
        return Reply(remark=NO_CODE, ext_fields=fields)

    def _has_message(self, header: NotificationRequestHeader, topic: str, queue_id: int) -> bool:
        broker, group = self._broker, header.consumer_group
        key = GroupQueue(header.topic, group, queue_id)
        if header.order and broker.pop_order.is_blocked(key, header.attempt_id, broker.now_ms()):
            return False
        return broker.store.max_offset(topic, queue_id) > self._place(group, topic, queue_id)

    def _queues(self, header: QueueHeader) -> Iterator[tuple[str, int]]:
        """Yield topic and queue id in the order in which a pop reads. One of five pops reads the retry topic first."""
        dice, broker = random.randrange(DICE), self._broker
        retry = retry_topic_to_read(broker.settings, header.consumer_group, header.topic, dice)
        first, last = (retry, header.topic) if dice % 5 == 0 else (header.topic, retry)
        for topic in (first, last):
            config = broker.topics.get(topic)
            if topic == header.topic and header.queue_id >= 0:
                yield topic, header.queue_id
            elif config is not None:
                for number in range(config.read_queue_nums):
                    yield topic, (dice + number) % config.read_queue_nums

    def _place(self, group: str, topic: str, queue_id: int) -> int:
        offset = self._broker.offsets.get(group, topic, queue_id)
        return self._broker.store.min_offset(topic, queue_id) if offset is None else offset
