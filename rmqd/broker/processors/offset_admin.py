"""Administrators' requests about groups' offsets (`AdminBrokerProcessor.java`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqd.broker.channel import Channel
from rmqd.broker.mq_version import TAKES_RESETS, version_desc
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import Refusal, Reply
from rmqd.codes import LanguageCode, RequestCode, ResponseCode
from rmqd.wire.bodies.data_version import DataVersion
from rmqd.wire.bodies.group import ConsumerOffsetSerializeWrapper, QueryCorrectionOffsetBody, ResetOffsetBody
from rmqd.wire.bodies.settings import TopicConfig
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.offset import (
    CloneGroupOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
)
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController

NOT_SET: Final = "not set any response code"  # the remark of responses whose code RocketMQ forgets to set
_UNSET: Final = {"group": "null", "timestamp": "0", "isForce": "false"}  # Java's values of missing fields
_ALL_QUEUES: Final = -1
_MAX_LONG: Final = 2**63 - 1


class OffsetAdminProcessor(RequestProcessor):
    """Answers administrators about groups' offsets: lists, resets, copies."""

    def __init__(self, broker: BrokerController) -> None:
        super().__init__(broker)
        self._since = DataVersion(0, int(broker.clock.wall() * 1000))

    @answers(RequestCode.GET_ALL_CONSUMER_OFFSET)
    def all_offsets(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_ALL_CONSUMER_OFFSET (43): all offsets, as RocketMQ stores them in consumerOffset.json."""
        offsets = self._broker.offsets
        topics: dict[str, tuple[str, ...]] = {}
        for key in offsets.committed_table():
            topic, _, group = key.partition("@")
            topics[group] = (*topics.get(group, ()), topic)
        body = ConsumerOffsetSerializeWrapper(offsets.committed_table(), offsets.pulled_table(), topics, self._since)
        return Reply(body=body.to_json())

    @answers(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): reset here, or by a push to members (useServerSideResetOffset)."""
        header = ResetOffsetRequestHeader.from_ext_fields({**_UNSET, **request.ext_fields})
        if self._broker.settings.useServerSideResetOffset:
            return self._reset_here(header)
        return self._reset_members(header, as_list=request.language is LanguageCode.CPP)

    @answers(RequestCode.QUERY_CORRECTION_OFFSET)
    def correction(self, channel: Channel, request: RemotingCommand) -> Reply:
        """QUERY_CORRECTION_OFFSET (308): the lowest offsets of a topic's groups, if the given group is not behind them.

        RocketMQ also deletes the offsets of the excluded groups, which cannot be intended.
        """
        header = QueryCorrectionOffsetHeader.from_ext_fields(request.ext_fields)
        offsets, store = self._broker.offsets, self._broker.store
        left_out = (header.filter_groups or "").split(",")
        least: dict[int, int] = {}
        for group in offsets.groups_of(header.topic):
            if group in left_out:
                continue
            for queue_id, offset in offsets.queues(group, header.topic).items():
                if offset >= store.min_offset(header.topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        for queue_id, offset in offsets.queues(header.compare_group, header.topic).items():
            if least.get(queue_id, _MAX_LONG) > offset:
                least[queue_id] = _MAX_LONG
        return Reply(body=QueryCorrectionOffsetBody(least).to_json())

    @answers(RequestCode.CLONE_GROUP_OFFSET)
    def clone(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CLONE_GROUP_OFFSET (314): copy the offsets of one group to another."""
        header = CloneGroupOffsetRequestHeader.from_ext_fields(request.ext_fields)
        broker = self._broker
        info = None if header.offline else broker.consumers.get(header.src_group)
        for topic in [header.topic] if header.topic else broker.offsets.topics_of(header.src_group):
            subscribed = info is None or not info.subscriptions or topic in info.subscriptions
            if broker.topics.get(topic) is not None and subscribed:
                broker.offsets.clone(header.src_group, header.dest_group, topic)
        return Reply()

    def _reset_here(self, header: ResetOffsetRequestHeader) -> Reply:
        broker, topic, group = self._broker, header.topic, header.group
        config = broker.topics.get(topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} does not exist")
        if broker.groups.get(group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        targets = self._targets(header, config)
        if not targets:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue_id, offset in targets.items():
            broker.offsets.reset(group, topic, queue_id, offset)
        return Reply(body=self._body(topic, targets).to_json())

    def _targets(self, header: ResetOffsetRequestHeader, config: TopicConfig) -> dict[int, int]:
        topic, queue_id, offset = header.topic, header.queue_id, header.offset
        if queue_id is None or queue_id <= _ALL_QUEUES:
            return {one: self._search(topic, one, header.timestamp) for one in range(config.read_queue_nums)}
        if offset is None or offset == -1:
            return {queue_id: self._search(topic, queue_id, header.timestamp)}
        low, high = self._broker.store.min_offset(topic, queue_id), self._broker.store.max_offset(topic, queue_id)
        if not low <= offset <= high + 1:
            remark = f"Target offset {offset} not in consume queue range [{low}-{high}]"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        return {queue_id: offset}

    def _reset_members(self, header: ResetOffsetRequestHeader, *, as_list: bool) -> Reply:
        """Send RESET_CONSUMER_CLIENT_OFFSET (220) to each member.

        Without force, queues only move backward. The fields `queueId` and `offset` are ignored.
        """
        broker, topic, group = self._broker, header.topic, header.group
        config = broker.topics.get(topic)
        if config is None:
            remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        targets = {}
        for queue_id in range(config.write_queue_nums):
            committed = broker.offsets.get(group, topic, queue_id)
            if committed is None:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{group}> not exist")
            found = self._search(topic, queue_id, header.timestamp)
            targets[queue_id] = found if header.is_force else min(found, committed)
        info = broker.consumers.get(group)
        if info is None:
            remark = "Consumer not online, so can not reset offset, Group: {} Topic: {} Timestamp: {}"
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, remark.format(group, topic, header.timestamp))
        push = ResetOffsetRequestHeader(
            topic=topic, group=group, timestamp=header.timestamp, is_force=False, queue_id=_ALL_QUEUES
        )
        body = self._body(topic, targets)
        for client in info.channels.values():
            if client.version < TAKES_RESETS:
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={version_desc(client.version)}",
                )
            client.channel.send_oneway(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, push.ext_fields(), body.to_json(as_list=as_list)
            )
        return Reply(remark=NOT_SET, body=body.to_json())

    def _search(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset at a time; the end of the queue for a time below 0."""
        store = self._broker.store
        return (
            store.max_offset(topic, queue_id)
            if timestamp_ms < 0
            else store.offset_by_time(topic, queue_id, timestamp_ms)
        )

    def _body(self, topic: str, targets: dict[int, int]) -> ResetOffsetBody:
        return ResetOffsetBody(
            {MessageQueue(topic, self._broker.name, queue_id): offset for queue_id, offset in targets.items()}
        )
