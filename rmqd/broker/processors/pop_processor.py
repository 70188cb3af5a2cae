"""Pops: the check of a pop's group, and the choice of queues and messages for a pop (`PopMessageProcessor.java`)."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

from rmqd.broker.filter.message_filter import MessageFilter, filter_of, requested_subscription
from rmqd.broker.filter.sql_condition import ExpressionError
from rmqd.broker.held_requests import GroupQueue, HeldRequest
from rmqd.broker.peer_channel import SEE_FAQ, Answer, Channel, Refusal, Reply, set_refusal_fields
from rmqd.broker.pop.pop_orders import pops_by_priority
from rmqd.broker.pop.revive import HiddenPop
from rmqd.broker.processors.processor_base import RequestProcessor, answers
from rmqd.broker.store.queue_store import GetMessageStatus, GetResult
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import InvalidNameError
from rmqd.wire import receipt_handle
from rmqd.wire.bodies.route_data import PERM_READ
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers import pop_headers as headers
from rmqd.wire.headers.pop_headers import PopMessageRequestHeader, PopMessageResponseHeader
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader
from rmqd.wire.messages.decode import decode_record
from rmqd.wire.messages.encode import encode_message
from rmqd.wire.messages.properties import POP_CK
from rmqd.wire.topics import is_retry_topic, pop_retry_topic, pop_retry_topic_v2

if TYPE_CHECKING:
    from rmqd.broker.broker_settings import BrokerSettings
    from rmqd.broker.controller import BrokerController
    from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, TopicConfig


LATE_AFTER_MS: Final = 500
"""A pop that arrives this long after the end of its poll time is rejected, because the client has timed out."""


QueueHeader = (
    headers.AckMessageRequestHeader
    | headers.ChangeInvisibleTimeRequestHeader
    | headers.NotificationRequestHeader
    | headers.PeekMessageRequestHeader
    | headers.PollingInfoRequestHeader
    | headers.PopMessageRequestHeader
    | PullMessageRequestHeader
)
"""The request headers with a group, a topic and a queue id. Queue id -1 stands for any queue."""


def check_reading(broker: BrokerController, channel: Channel, header: QueueHeader, doing: str) -> None:
    """Raise Refusal if the group must not read this queue. `doing` is the verb in the remark, such as "peeking"."""
    settings, group, topic = broker.settings, header.consumer_group, header.topic
    if not settings.brokerPermission & PERM_READ:
        raise Refusal(ResponseCode.NO_PERMISSION, f"the broker[{settings.brokerIP1}] {doing} message is forbidden")
    config = known_topic(broker, topic)
    if not config.perm & PERM_READ:
        raise Refusal(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")
    if header.queue_id >= config.read_queue_nums:
        raise Refusal(ResponseCode.INVALID_PARAMETER, illegal_queue(channel, header, config))
    if not known_group(broker, group).consume_enable:
        raise Refusal(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")


def known_topic(broker: BrokerController, topic: str) -> TopicConfig:
    """Return a topic's configuration. Raises Refusal if the topic is missing."""
    config = broker.topics.get(topic)
    if config is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {SEE_FAQ}")
    return config


def known_group(broker: BrokerController, group: str) -> SubscriptionGroupConfig:
    """Return a group's configuration, and create a missing group. Raises Refusal if the group cannot be created."""
    config = broker.groups.find_or_create(group)
    if config is None:
        remark = f"subscription group [{group}] does not exist, {SEE_FAQ}"
        raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    return config


def illegal_queue(channel: Channel, header: QueueHeader, config: TopicConfig) -> str:
    """Return Java's error remark for a queue that the topic does not have."""
    return (
        f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
        f"topicConfig.readQueueNums:[{config.read_queue_nums}] consumer:[/{channel.address}]"
    )


FROM_FIRST: Final = 0  # Java: ConsumeInitMode.MIN
FROM_LAST: Final = 1  # Java: ConsumeInitMode.MAX
_queue_offset = Struct(">20xq").unpack_from
_WRONG_OFFSET: Final = (GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY)


def retry_topic_to_read(settings: BrokerSettings, group: str, topic: str, dice: int) -> str:
    """Return the pop retry topic to read. If both forms of its name may be in use, `dice` chooses one of them."""
    if settings.enableRetryTopicV2 and not (settings.retrieveMessageFromPopRetryTopicV1 and dice % 2 == 0):
        return pop_retry_topic_v2(group, topic)
    return pop_retry_topic(group, topic)


@dataclass(slots=True)
class PoppedMessages:
    """The messages that one pop has read so far. `rest` counts the messages left in the queues that the pop read."""

    broker: BrokerController
    header: PopMessageRequestHeader
    wanted: MessageFilter | None
    pop_time: int
    revive_queue_id: int
    rest: int = 0
    records: list[bytes] = field(default_factory=list)
    starts: dict[receipt_handle.PoppedQueue, int] = field(default_factory=dict)
    offsets: dict[receipt_handle.PoppedQueue, list[int]] = field(default_factory=dict)
    counts: receipt_handle.OrderCounts = field(default_factory=lambda: receipt_handle.OrderCounts({}, {}))

    @property
    def room(self) -> int:
        """The number of messages that the pop may still take."""
        return self.header.max_msg_nums - len(self.records)

    def read_messages(self, dice: int) -> None:
        """Read messages. `dice` (0 to 99) selects the first queue, and whether the retry topic is read first.

        A pop by priority begins with the queue of the highest priority.
        """
        header, broker = self.header, self.broker
        topic, group = broker.topics.get(header.topic), broker.groups.get(header.consumer_group)
        if not header.order and pops_by_priority(topic, group, dice):
            retries_first = dice < broker.settings.popFromRetryProbabilityForPriority
            dice = 0
        else:
            retries_first = dice < broker.settings.popFromRetryProbability
        retry = retry_topic_to_read(broker.settings, header.consumer_group, header.topic, dice)
        if retries_first and not header.order:
            self._take_of_topic(retry, dice)
        if header.queue_id < 0:
            self._take_of_topic(header.topic, dice)
        else:
            self._take_of_queue(header.topic, header.queue_id)
        if not retries_first and self.room > 0 and not header.order:
            self._take_of_topic(retry, dice)

    def _take_of_topic(self, topic: str, dice: int) -> None:
        config = self.broker.topics.get(topic)
        queues = 0 if config is None else config.read_queue_nums
        order = reversed(range(queues)) if self.broker.settings.priorityOrderAsc else range(queues)
        for number in order:
            self._take_of_queue(topic, (dice + number) % queues)

    def _take_of_queue(self, topic: str, queue_id: int) -> None:
        broker, group = self.broker, self.header.consumer_group
        offset = pop_start_offset(broker, group, topic, queue_id, self.header.init_mode)
        key = GroupQueue(topic, group, queue_id)
        if self.header.order and broker.pop_order.is_blocked(key, self.header.attempt_id, self.pop_time):
            return  # messages in a blocked queue do not count as rest, because no pop can read them
        if self.room <= 0:
            self.rest += broker.store.max_offset(topic, queue_id) - offset
            return
        found, offset = read_at_legal_offset(broker, key, offset, self.room, self.wanted)
        self.rest += found.max_offset - found.next_begin_offset
        if found.records:
            self._keep(key, offset, found)
        elif found.status is GetMessageStatus.NO_MATCHED_MESSAGE:
            broker.offsets.commit(group, topic, queue_id, found.next_begin_offset)

    def _keep(self, key: GroupQueue, start: int, found: GetResult) -> None:
        broker, header = self.broker, self.header
        topic, group, queue_id = key
        queue = receipt_handle.PoppedQueue(receipt_handle.RetryFlag.of(topic), queue_id)
        offsets = [_queue_offset(record)[0] for record in found.records]
        if header.order:
            counts = broker.pop_order.record_pop(
                key, queue, header.attempt_id, self.pop_time, header.invisible_time, offsets
            )
            self.counts = receipt_handle.OrderCounts(
                {**self.counts.queues, **counts.queues}, {**self.counts.messages, **counts.messages}
            )
            broker.offsets.commit(group, topic, queue_id, start)
        else:
            broker.revive.hide(
                HiddenPop(topic, group, queue_id, offset, self.pop_time, header.invisible_time) for offset in offsets
            )
            broker.offsets.commit(group, topic, queue_id, found.next_begin_offset)
        self.starts[queue] = start
        self.offsets[queue] = offsets
        if is_retry_topic(topic) and topic != header.topic:
            self.records += [self._as_of_the_topic(record, queue, start, offset)
                             for record, offset in zip(found.records, offsets, strict=True)]  # fmt: skip
        else:
            self.records += found.records
        broker.stats.count_pulled(group, topic, len(offsets), sum(map(len, found.records)))

    def _as_of_the_topic(self, record: bytes, queue: receipt_handle.PoppedQueue, start: int, offset: int) -> bytes:
        """Return a retry topic's record with the original topic. The added handle (POP_CK) names the retry topic."""
        message = decode_record(record)
        handle = receipt_handle.PopHandle(
            start,
            self.pop_time,
            self.header.invisible_time,
            self.revive_queue_id,
            queue.retry,
            self.broker.name,
            queue.queue_id,
            offset,
        )
        message.topic = self.header.topic
        message.properties = {POP_CK: str(handle), **message.properties}
        return encode_message(message)


def pop_start_offset(
    broker: BrokerController, group: str, topic: str, queue_id: int, init_mode: int = FROM_LAST
) -> int:
    """Return the offset at which a pop starts to read. Commits a pending reset, or the first offset of a new group."""
    reset = broker.offsets.take_reset(group, topic, queue_id)
    if reset is not None:
        broker.pop_order.clear(GroupQueue(topic, group, queue_id))
        broker.offsets.commit(group, topic, queue_id, reset)
        return reset
    known = broker.offsets.get(group, topic, queue_id)
    if known is not None:
        return known
    low, high = broker.store.min_offset(topic, queue_id), broker.store.max_offset(topic, queue_id)
    if init_mode != FROM_FIRST and not is_retry_topic(topic) and low > 0:
        low = max(0, high - 1)
    broker.offsets.commit(group, topic, queue_id, low)
    return low


def read_at_legal_offset(
    broker: BrokerController, key: GroupQueue, offset: int, most: int, wanted: MessageFilter | None = None
) -> tuple[GetResult, int]:
    """Read a queue at `offset`. Returns the result and the offset. An illegal offset is corrected and committed."""
    found = broker.store.get(key.topic, key.queue_id, offset, most, wanted)
    if found.status in _WRONG_OFFSET:
        offset = found.next_begin_offset
        broker.offsets.commit(key.group, key.topic, key.queue_id, offset)
        found = broker.store.get(key.topic, key.queue_id, offset, most, wanted)
    return found, offset


DICE: Final = 100
NOTHING_POPPED: Final = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=0).ext_fields()
"""The ext fields of the response to a refused pop."""


class PopMessageProcessor(RequestProcessor):
    """The processor of pops: gives messages to a member, and hides them from other members for a time."""

    def __init__(self, broker: BrokerController) -> None:
        super().__init__(broker)
        self._numbers = itertools.count()

    @answers(RequestCode.POP_MESSAGE)
    def pop(self, channel: Channel, request: RemotingCommand) -> Answer:
        """POP_MESSAGE (200050): return messages and hide them, at once or when messages arrive."""
        header = PopMessageRequestHeader.from_ext_fields({"bornTime": "0", **request.ext_fields})
        now_ms, ip = self._broker.now_ms(), self._broker.settings.brokerIP1
        born_ms = header.born_time or now_ms
        if now_ms - born_ms - header.poll_time > LATE_AFTER_MS:
            remark = f"the broker[{ip}] pop message is timeout too much"
            raise Refusal(ResponseCode.POLLING_TIMEOUT, remark, NOTHING_POPPED)
        if header.max_msg_nums > receipt_handle.MAX_POP_MESSAGES:
            remark = f"the broker[{ip}] pop message's num is greater than 32"
            raise Refusal(ResponseCode.INVALID_PARAMETER, remark, NOTHING_POPPED)
        return self._answer(channel, request, header, born_ms + header.poll_time)

    def _answer(
        self, channel: Channel, request: RemotingCommand, header: PopMessageRequestHeader, until_ms: int
    ) -> Answer:
        broker = self._broker
        with set_refusal_fields(NOTHING_POPPED):
            check_reading(broker, channel, header, "pop")
            wanted = self._wanted(header)
        taking = PoppedMessages(broker, header, wanted, broker.now_ms(), self._revive_queue(header))
        taking.read_messages(random.randrange(DICE))
        place = GroupQueue(header.topic, header.consumer_group, header.queue_id)
        code: ResponseCode | None = ResponseCode.SUCCESS
        if not taking.records:
            again = partial(self._answer, header=header, until_ms=until_ms)
            pop = HeldRequest(place, place.group, channel, request, again, wanted)
            code = broker.held_pops.hold(pop, until_ms - taking.pop_time, header.poll_time)
        if taking.rest > 0 and header.max_msg_nums > 0 and code in (None, ResponseCode.SUCCESS):
            broker.held_pops.wake(place)  # another held pop may read the messages that this pop left
        return None if code is None else self._reply(code, taking)

    def _reply(self, code: ResponseCode, taking: PoppedMessages) -> Reply:
        header = PopMessageResponseHeader(
            pop_time=taking.pop_time,
            invisible_time=taking.header.invisible_time,
            revive_qid=taking.revive_queue_id,
            rest_num=taking.rest,
            start_offset_info=receipt_handle.format_start_offsets(taking.starts),
            msg_offset_info=receipt_handle.format_message_offsets(taking.offsets),
            order_count_info=receipt_handle.format_order_counts(taking.counts) if taking.header.order else None,
        )
        remark = "FOUND" if taking.records else "NO_MESSAGE_IN_QUEUE"
        return Reply(code, remark, header.ext_fields(), b"".join(taking.records))

    def _wanted(self, header: PopMessageRequestHeader) -> MessageFilter | None:
        """Return the filter of a pop; None if all messages pass. Also subscribes the group to the topic."""
        try:
            subscription = requested_subscription(header.topic, header.exp, header.exp_type)
            wanted = filter_of(subscription)
        except (InvalidNameError, ExpressionError):
            raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from None
        self._broker.consumers.note_popped(header.consumer_group, header.topic)
        return wanted

    def _revive_queue(self, header: PopMessageRequestHeader) -> int:
        if header.order:
            return receipt_handle.ORDER_REVIVE_QUEUE
        return next(self._numbers) % max(1, self._broker.settings.reviveQueueNum)
