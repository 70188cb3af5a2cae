"""Pulls (`PullMessageProcessor.java`, `DefaultPullMessageResultHandler.java`).

A broadcasting member is answered like any other member. RocketMQ's broker also stores the offsets of broadcasting
members, which matters only if a member moves between a proxy and the broker.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from rmqd.broker.filter.message_filter import MessageFilter, filter_of, is_tag_type, requested_subscription
from rmqd.broker.filter.sql_condition import ExpressionError
from rmqd.broker.held_requests import GroupQueue, HeldRequest
from rmqd.broker.peer_channel import SEE_FAQ, Answer, Channel, Refusal, Reply
from rmqd.broker.processors.pop_processor import illegal_queue, known_group, known_topic
from rmqd.broker.processors.processor_base import RequestProcessor, answers
from rmqd.broker.store.queue_store import GetMessageStatus, GetResult
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import InvalidNameError
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig, TopicConfig
from rmqd.wire.bodies.heartbeat_data import MessageModel, SubscriptionData
from rmqd.wire.bodies.route_data import PERM_READ
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmqd.wire.messages.properties import PullSysFlag

_CODES: Final = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}


class _Forbidden(Refusal):
    """A refusal with NO_PERMISSION. `by` is the kind of setting that forbids the pull."""

    BROKER, GROUP, TOPIC, BROADCASTING, SUBSCRIPTION = 1, 2, 3, 4, 5  # Java: ForbiddenType

    def __init__(self, by: int, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(by)})


class PullMessageProcessor(RequestProcessor):
    """The processor of pulls: answers with messages, at once or when they arrive, or with the reason for no message."""

    @answers(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def pull(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Answer PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361), at once or when a message arrives."""
        return self._answer(channel, request, first=True)

    def _answer(self, channel: Channel, request: RemotingCommand, *, first: bool) -> Answer:
        """Answer a pull. `first` is False for a pull that was held. It is not held again, and commits no offset."""
        header = PullMessageRequestHeader.from_ext_fields(request.ext_fields)
        broker = self._broker
        group, topic, queue_id, sys_flag = header.consumer_group, header.topic, header.queue_id, header.sys_flag
        group_config, topic_config = self._checked(channel, request, header)
        wanted = self._wanted(header, group_config)
        found = self._found(header, wanted)
        code = _CODES.get(found.status)
        if code is None:  # the queue never had a message
            code = ResponseCode.PULL_OFFSET_MOVED if header.queue_offset else ResponseCode.PULL_NOT_FOUND
        broker.offsets.note_pulled(group, topic, queue_id, found.next_begin_offset)
        if first and sys_flag & PullSysFlag.COMMIT_OFFSET:
            broker.offsets.commit(group, topic, queue_id, header.commit_offset)
        if code is ResponseCode.PULL_NOT_FOUND and first and sys_flag & PullSysFlag.SUSPEND:
            settings = broker.settings
            millis = header.suspend_timeout_millis if settings.longPollingEnable else settings.shortPollingTimeMills
            place, again = GroupQueue(topic, "", queue_id), partial(self._answer, first=False)
            broker.held_pulls.keep(HeldRequest(place, group, channel, request, again, wanted), millis / 1000)
            return None
        if request.is_oneway or channel.closed:
            return None
        reply = PullMessageResponseHeader(
            found.next_begin_offset,
            found.min_offset,
            found.max_offset,
            topic_sys_flag=topic_config.topic_sys_flag,
            group_sys_flag=group_config.group_sys_flag,
        )
        records = found.records
        broker.stats.count_pulled(group, topic, len(records), sum(map(len, records)))
        return Reply(code, found.status, reply.ext_fields(), b"".join(records))

    def _checked(
        self, channel: Channel, request: RemotingCommand, header: PullMessageRequestHeader
    ) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        """Return the group and the topic of a pull. Raises Refusal if the group must not read this queue."""
        broker, settings = self._broker, self._broker.settings
        if not settings.brokerPermission & PERM_READ:
            raise _Forbidden(_Forbidden.BROKER, f"the broker[{broker.host}] pulling message is forbidden")
        if request.code == RequestCode.LITE_PULL_MESSAGE and not settings.litePullMessageEnable:
            raise _Forbidden(_Forbidden.BROKER, f"the broker[{broker.host}] for lite pull consumer is forbidden")
        group_config = known_group(broker, header.consumer_group)
        if not group_config.consume_enable:
            raise _Forbidden(_Forbidden.GROUP, f"subscription group no permission, {header.consumer_group}")
        topic_config = known_topic(broker, header.topic)
        if not topic_config.perm & PERM_READ:
            raise _Forbidden(_Forbidden.TOPIC, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic_config.read_queue_nums:
            raise Refusal(ResponseCode.INVALID_PARAMETER, illegal_queue(channel, header, topic_config))
        return group_config, topic_config

    def _wanted(self, header: PullMessageRequestHeader, group_config: SubscriptionGroupConfig) -> MessageFilter | None:
        """Return the filter of a pull; None if all messages pass. Raises Refusal."""
        wanted = None
        if header.sys_flag & PullSysFlag.SUBSCRIPTION:
            try:
                subscription = requested_subscription(header.topic, header.subscription, header.expression_type)
                wanted = filter_of(subscription)
            except InvalidNameError:
                raise Refusal(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
                ) from None
            except ExpressionError:
                pass  # the real broker logs the error, and lets all messages pass
        else:
            subscription = self._registered_subscription(header, group_config)
            try:
                wanted = filter_of(subscription)
            except ExpressionError:
                raise Refusal(
                    ResponseCode.FILTER_DATA_NOT_EXIST,
                    "The broker's consumer filter data is not exist!Your expression may be wrong!",
                ) from None
        if not is_tag_type(subscription.expression_type) and not self._broker.settings.enablePropertyFilter:
            raise Refusal(ResponseCode.SYSTEM_ERROR, no_property_filter(subscription.expression_type))
        return wanted

    def _registered_subscription(
        self, header: PullMessageRequestHeader, group_config: SubscriptionGroupConfig
    ) -> SubscriptionData:
        """Return the group's subscription to the topic, from its last heartbeat. Raises Refusal."""
        info = self._broker.consumers.get(header.consumer_group)
        if info is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{SEE_FAQ}")
        if not group_config.consume_broadcast_enable and info.message_model == MessageModel.BROADCASTING:
            raise _Forbidden(
                _Forbidden.BROADCASTING, f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            )
        if self._broker.groups.is_reading_forbidden(header.consumer_group, header.topic):
            raise _Forbidden(
                _Forbidden.SUBSCRIPTION,
                f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]",
            )
        subscription = info.subscriptions.get(header.topic)
        if subscription is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{SEE_FAQ}")
        if subscription.sub_version < header.sub_version:
            raise Refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription

    def _found(self, header: PullMessageRequestHeader, wanted: MessageFilter | None) -> GetResult:
        """Read messages. If an operator reset the offset, return the new offset once instead of messages."""
        broker, topic, queue_id = self._broker, header.topic, header.queue_id
        reset = broker.offsets.take_reset(header.consumer_group, topic, queue_id)
        if reset is not None:
            low, high = broker.store.min_offset(topic, queue_id), broker.store.max_offset(topic, queue_id)
            return GetResult(GetMessageStatus.OFFSET_RESET, reset, low, high, [])
        return broker.store.get(topic, queue_id, header.queue_offset, header.max_msg_nums, wanted)


def no_property_filter(expression_type: str) -> str:
    """Return the error remark of a broker whose setting `enablePropertyFilter` is false."""
    return f"The broker does not support consumer to filter message by {expression_type}"
