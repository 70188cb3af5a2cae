"""Subscriptions to lite topics, and pops of lite topics (`LiteSubscriptionCtlProcessor`, `PopLiteMessageProcessor`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from rmqd.broker.held_requests import GroupQueue, HeldRequest
from rmqd.broker.peer_channel import SEE_FAQ, Answer, Channel, Refusal, Reply, set_refusal_fields
from rmqd.broker.processors.pop_processor import LATE_AFTER_MS, pop_start_offset, read_at_legal_offset
from rmqd.broker.processors.processor_base import RequestProcessor, answers
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.config_bodies import LITE, MESSAGE_TYPE
from rmqd.wire.bodies.pop_bodies import LiteSubscription, LiteSubscriptionAction, LiteSubscriptionCtlRequestBody
from rmqd.wire.bodies.route_data import PERM_READ
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pop_headers import PopLiteMessageRequestHeader, PopLiteMessageResponseHeader
from rmqd.wire.lite_topic import BIND_TOPIC_ATTRIBUTE, lite_topic_queue
from rmqd.wire.receipt_handle import ANY_QUEUE_ID, MAX_POP_MESSAGES, ORDER_REVIVE_QUEUE, PoppedQueue, RetryFlag
from rmqd.wire.topics import LIGHT_QUEUE_ID

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


_QUEUE: Final = PoppedQueue(RetryFlag.NORMAL, LIGHT_QUEUE_ID)
_NOTHING_POPPED: Final = PopLiteMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0).ext_fields()


class LiteProcessor(RequestProcessor):
    """The processor of subscriptions to lite topics and of pops of lite topics."""

    @answers(RequestCode.LITE_SUBSCRIPTION_CTL)
    def subscribe(self, channel: Channel, request: RemotingCommand) -> Reply:
        """LITE_SUBSCRIPTION_CTL (200071): add or remove clients' subscriptions to lite topics."""
        if not request.body:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "Request body is null.")
        subscriptions = LiteSubscriptionCtlRequestBody.from_json(request.body).subscriptions
        if not subscriptions:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty.")
        for one in subscriptions:
            if one.client_id.strip() and one.group.strip() and one.topic.strip():
                self._subscribe(channel, one)
        return Reply()

    @answers(RequestCode.POP_LITE_MESSAGE)
    def pop(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Answer POP_LITE_MESSAGE (200070) with messages of the client's lite topics, at once or when they arrive."""
        header = PopLiteMessageRequestHeader.from_ext_fields({"bornTime": "0", **request.ext_fields})
        now_ms = self._broker.now_ms()
        born_ms = header.born_time or now_ms
        with set_refusal_fields(_NOTHING_POPPED):
            _check(self._broker, header, late_ms=now_ms - born_ms - header.poll_time)
        return self._answer(channel, request, header, born_ms + header.poll_time)

    def _answer(
        self, channel: Channel, request: RemotingCommand, header: PopLiteMessageRequestHeader, until_ms: int
    ) -> Answer:
        broker, now_ms = self._broker, self._broker.now_ms()
        records, tries = _take(broker, header, now_ms)
        code: ResponseCode | None = ResponseCode.SUCCESS
        if not records:
            place = GroupQueue(header.client_id, header.consumer_group, ANY_QUEUE_ID)
            again = partial(self._answer, header=header, until_ms=until_ms)
            pop = HeldRequest(place, place.group, channel, request, again)
            code = broker.held_lite_pops.hold(pop, until_ms - now_ms, header.poll_time)
        if code is None:
            return None
        reply = PopLiteMessageResponseHeader(
            pop_time=now_ms,
            invisible_time=header.invisible_time,
            revive_qid=ORDER_REVIVE_QUEUE,
            order_count_info=";".join(map(str, tries)),
        )
        return Reply(code, "FOUND" if records else "NO_MESSAGE_IN_QUEUE", reply.ext_fields(), b"".join(records))

    def _subscribe(self, channel: Channel, one: LiteSubscription) -> None:
        lite, client_id = self._broker.lite, one.client_id
        queues = {lite_topic_queue(one.topic, name, self._broker.name).topic for name in one.lite_topics}
        adds = one.action in (LiteSubscriptionAction.PARTIAL_ADD, LiteSubscriptionAction.COMPLETE_ADD)
        if adds:
            group = self._broker.groups.find_or_create(one.group)
            if group is None or not group.consume_enable:
                raise Refusal(ResponseCode.ILLEGAL_OPERATION, "Consumer group is not allowed to consume.")
        if one.action is LiteSubscriptionAction.COMPLETE_ADD:
            lite.replace(client_id, one.group, one.topic, queues)
        elif one.action is LiteSubscriptionAction.COMPLETE_REMOVE:
            lite.remove_client(client_id)
        elif one.action is LiteSubscriptionAction.PARTIAL_REMOVE:
            lite.remove(client_id, queues)
        elif lite.is_wildcard(one.group):
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "subscribe lite operation is not supported for this group")
        elif one.offset_option is not None:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, "a start offset for lite topics is not supported")
        else:
            lite.add(client_id, one.group, one.topic, queues)
        if adds:
            lite.note_channel(client_id, channel)


def _check(broker: BrokerController, header: PopLiteMessageRequestHeader, late_ms: int) -> None:
    """Raise Refusal if the group must not pop lite topics of this parent topic."""
    ip, topic, group = broker.settings.brokerIP1, header.topic, header.consumer_group
    if late_ms > LATE_AFTER_MS:
        raise Refusal(ResponseCode.POLLING_TIMEOUT, f"the broker[{ip}] pop message is timeout too much")
    if not broker.settings.brokerPermission & PERM_READ:
        raise Refusal(ResponseCode.NO_PERMISSION, f"the broker[{ip}] pop message is forbidden")
    if header.max_msg_num > MAX_POP_MESSAGES:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"the broker[{ip}] pop message's num is greater than 32")
    config = broker.topics.get(topic)
    if config is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic [{topic}] not exist, apply first please! {SEE_FAQ}")
    if not config.perm & PERM_READ:
        raise Refusal(ResponseCode.NO_PERMISSION, f"the topic [{topic}] peeking message is forbidden")
    if config.attributes.get(MESSAGE_TYPE) != LITE:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"the topic [{topic}] message type not match")
    group_config = broker.groups.find_or_create(group)
    if group_config is None:
        remark = f"subscription group [{group}] not exist, {SEE_FAQ}"
        raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not group_config.consume_enable:
        raise Refusal(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
    if group_config.attributes.get(BIND_TOPIC_ATTRIBUTE) != topic:
        raise Refusal(ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {group}")


def _take(broker: BrokerController, header: PopLiteMessageRequestHeader, now_ms: int) -> tuple[list[bytes], list[int]]:
    """Pop messages of unblocked lite topics. Returns the records, and how often each record was popped before."""
    records: list[bytes] = []
    tries: list[int] = []
    group, attempt_id = header.consumer_group, header.attempt_id
    notified = broker.lite.take_notified_queues(header.client_id)
    while len(records) < header.max_msg_num and (queue := next(notified, None)) is not None:
        key = GroupQueue(queue, group, LIGHT_QUEUE_ID)
        if broker.pop_order.is_blocked(key, attempt_id, now_ms):
            continue
        offset = pop_start_offset(broker, group, queue, LIGHT_QUEUE_ID)
        found, offset = read_at_legal_offset(broker, key, offset, header.max_msg_num - len(records))
        if found.records:
            offsets = range(offset, offset + len(found.records))
            counts = broker.pop_order.record_pop(key, _QUEUE, attempt_id, now_ms, header.invisible_time, offsets)
            records += found.records
            tries += [counts.earlier_deliveries(_QUEUE, one) for one in offsets]
            broker.stats.count_pulled(group, header.topic, len(found.records), sum(map(len, found.records)))
    return records, tries
