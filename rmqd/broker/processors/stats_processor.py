"""Operators' requests: for the state of members, and for the broker's settings and statistics.

Java: `Broker2Client`, `AdminBrokerProcessor`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from rmqd.broker import broker_stats
from rmqd.broker.broker_settings import UnknownSettingError
from rmqd.broker.controller import BrokerController, runtime_info
from rmqd.broker.member_registry import ClientChannel
from rmqd.broker.peer_channel import NO_CODE, Channel, Refusal, Reply
from rmqd.broker.processors.processor_base import RequestProcessor, answers
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ProtocolError, RemotingClosedError, RemotingTimeoutError
from rmqd.wire.bodies import stats_bodies
from rmqd.wire.bodies.config_bodies import TopicConfig
from rmqd.wire.bodies.group_bodies import GetConsumerStatusBody, QueryConsumeTimeSpanBody, QueueTimeSpan
from rmqd.wire.bodies.json_body import DataVersion
from rmqd.wire.bodies.route_data import KVTable
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers import group_headers, topic_headers
from rmqd.wire.loose_json import dump_properties, load_properties
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message_id import parse_offset_message_id

log = structlog.get_logger(__name__)

STATUS_SECONDS: Final = 5.0  # timeout for a member's response with its offsets
CALL_SECONDS: Final = 10.0  # timeout for a member's response to a forwarded request
_PROTECTED: Final = frozenset({"configBlackList", "brokerConfigPath"})
_NO_TIME: Final = -1


class StatsProcessor(RequestProcessor):
    """The processor of operators' requests for members' state, and for the broker's settings and statistics."""

    def __init__(self, broker: BrokerController) -> None:
        super().__init__(broker)
        self._version = DataVersion(timestamp=int(broker.clock.wall() * 1000))

    @answers(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    async def consumer_status(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) with the offsets of the members that respond."""
        header = group_headers.GetConsumerStatusRequestHeader.from_ext_fields(request.ext_fields)
        info = self._broker.consumers.get(header.group)
        if info is None:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        asked = list(info.channels.values())
        if header.client_addr:
            asked = [client for client in asked if client.client_id == header.client_addr][:1]
        status_request = group_headers.GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        tables = await asyncio.gather(*(self._held_offsets(client, status_request) for client in asked))
        offsets = {client.client_id: table for client, table in zip(asked, tables, strict=True) if table is not None}
        return Reply(remark=NO_CODE, body=GetConsumerStatusBody(consumer_table=offsets).to_json())

    @answers(RequestCode.GET_CONSUMER_RUNNING_INFO)
    async def running_info(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_CONSUMER_RUNNING_INFO (307) with a member's response to the same request."""
        header = group_headers.GetConsumerRunningInfoRequestHeader.from_ext_fields(request.ext_fields)
        return await self._relay(request, header.consumer_group, header.client_id, request.ext_fields)

    @answers(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    async def consume_directly(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CONSUME_MESSAGE_DIRECTLY (309): ask a member to handle the stored message with this offset id."""
        broker = self._broker
        header = group_headers.ConsumeMessageDirectlyResultRequestHeader.from_ext_fields(request.ext_fields)
        fields = {**request.ext_fields, "brokerName": broker.name}
        topic = broker.topics.get(header.topic or "")
        if topic is not None:
            fields["topicSysFlag"] = str(topic.topic_sys_flag)
        group = broker.groups.find_or_create(header.consumer_group)
        if group is not None:
            fields["groupSysFlag"] = str(group.group_sys_flag)
        record = broker.store.record(parse_offset_message_id(header.msg_id or "").commit_log_offset)
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no message has the offset id {header.msg_id}")
        return await self._relay(request, header.consumer_group, header.client_id or "", fields, record)

    @answers(RequestCode.UPDATE_BROKER_CONFIG)
    def update_settings(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_BROKER_CONFIG (25): change settings until the broker stops. Unknown settings are only logged."""
        values = load_properties(request.body)
        if _PROTECTED & values.keys():
            raise Refusal(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        settings, ignored = self._broker.settings.updated(values)
        try:
            self._broker.change_settings(settings)
        except UnknownSettingError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if values:
            self._version = DataVersion(self._version.counter + 1, int(self._broker.clock.wall() * 1000))
        if ignored:
            log.warning("broker.settings_ignored", server="broker", settings=ignored)
        return Reply()

    @answers(RequestCode.GET_BROKER_CONFIG)
    def get_settings(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_BROKER_CONFIG (26) with the settings of this broker."""
        fields = {"version": self._version.to_json().decode()}
        return Reply(ext_fields=fields, body=dump_properties(self._broker.settings.as_properties()))

    @answers(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_BROKER_RUNTIME_INFO (28) with the broker's runtime figures."""
        return Reply(body=KVTable(runtime_info(self._broker)).to_json())

    @answers(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG)
    def expire(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306) and DELETE_EXPIRED_COMMITLOG (329): delete expired messages now."""
        self._broker.store.expire()
        return Reply()

    @answers(RequestCode.CLEAN_UNUSED_TOPIC)
    def clean_unused_topics(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CLEAN_UNUSED_TOPIC (316): do nothing, because the queues of a topic are deleted together with the topic."""
        return Reply()

    @answers(RequestCode.GET_TOPIC_STATS_INFO)
    def topic_stats(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_TOPIC_STATS_INFO (202) with min offset, max offset and last store time of a topic's queues."""
        config = self._topic(topic_headers.GetTopicStatsInfoRequestHeader.from_ext_fields(request.ext_fields).topic)
        store, topic, table = self._broker.store, config.topic_name, dict[MessageQueue, stats_bodies.TopicOffset]()
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            end = store.max_offset(topic, queue_id)
            last = max(0, self._store_time(topic, queue_id, end - 1))
            table[self._queue(topic, queue_id)] = stats_bodies.TopicOffset(store.min_offset(topic, queue_id), end, last)
        return Reply(body=stats_bodies.TopicStatsTable(table, self._broker.stats.put_per_second(topic)).to_json())

    @answers(RequestCode.GET_CONSUME_STATS)
    def consume_stats(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_CONSUME_STATS (208) with a group's offsets in a topic, or in all its subscribed topics."""
        header = topic_headers.GetConsumeStatsRequestHeader.from_ext_fields(request.ext_fields)
        group = header.consumer_group
        if header.topic_list:
            topics = [topic for topic in header.topic_list.split(";") if topic]
        else:
            asked = [header.topic] if (header.topic or "").strip() else self._broker.offsets.topics_of(group)
            topics = [topic for topic in asked if topic and self._broker.consumers.may_consume(group, topic)]
        table, tps = dict[MessageQueue, stats_bodies.OffsetWrapper](), 0.0
        for topic in dict.fromkeys(topics):
            config = self._broker.topics.get(topic)
            if config is not None:
                table |= self._place(group, topic, config.read_queue_nums, with_pulled=True)
                tps += self._broker.stats.get_per_second(group, topic)
        return Reply(body=stats_bodies.ConsumeStats(table, tps).to_json())

    @answers(RequestCode.GET_BROKER_CONSUME_STATS)
    def all_consume_stats(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_BROKER_CONSUME_STATS (317) with the offsets of every group."""
        header = topic_headers.GetConsumeStatsInBrokerHeader.from_ext_fields(request.ext_fields)
        broker, groups = self._broker, dict[str, tuple[stats_bodies.ConsumeStats, ...]]()
        for group in broker.groups.all():
            stats = []
            for topic in broker.offsets.topics_of(group):
                config = broker.topics.get(topic)
                if config is None or (header.is_order and not config.order):
                    continue
                if not broker.consumers.may_consume(group, topic):
                    continue
                place = self._place(group, topic, config.write_queue_nums, with_pulled=False)
                stats.append(stats_bodies.ConsumeStats(place, broker.stats.get_per_second(group, topic)))
            groups[group] = tuple(stats)
        return Reply(body=stats_bodies.ConsumeStatsList(groups, broker.address).to_json())

    @answers(RequestCode.QUERY_CONSUME_TIME_SPAN)
    def time_span(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer QUERY_CONSUME_TIME_SPAN (303) with times of each queue's first, last and last committed message."""
        header = topic_headers.QueryConsumeTimeSpanRequestHeader.from_ext_fields(request.ext_fields)
        config = self._topic(header.topic)
        spans = (self._span(header.group, header.topic, number) for number in range(config.write_queue_nums))
        return Reply(body=QueryConsumeTimeSpanBody(tuple(spans)).to_json())

    @answers(RequestCode.VIEW_BROKER_STATS_DATA)
    def counter(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer VIEW_BROKER_STATS_DATA (315) with a counter's increase over the last minute, hour and day."""
        header = topic_headers.ViewBrokerStatsDataRequestHeader.from_ext_fields(request.ext_fields)
        gained = self._broker.stats.find_counter(header.stats_name, header.stats_key)
        if gained is None:
            text = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            raise Refusal(ResponseCode.SYSTEM_ERROR, text)
        spans = (broker_stats.MINUTE, broker_stats.HOUR, broker_stats.DAY)
        return Reply(body=stats_bodies.BrokerStatsData(*map(gained, spans)).to_json())

    @answers(RequestCode.QUERY_CONSUME_QUEUE)
    def consume_queue(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer QUERY_CONSUME_QUEUE (321) with entries of a queue's index."""
        header = topic_headers.QueryConsumeQueueRequestHeader.from_ext_fields(request.ext_fields)
        topic, place = header.topic, f"{header.queue_id}@{header.topic}"
        queue = self._broker.store.queue(topic, header.queue_id)
        if queue is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{place} is not exist!")
        if not queue.min_offset <= header.index < queue.max_offset:
            return Reply(remark=f"Index {header.index} of {place} is not exist!")
        subscription, filter_data = None, None
        if header.consumer_group is not None:
            info = self._broker.consumers.get(header.consumer_group)
            subscription = None if info is None else info.subscriptions.get(topic)
            # Java's response contains the filter data as JSON if the subscription is SQL92
            filter_data = f"{header.consumer_group}@{topic} is not online!" if subscription is None else "null"
        entries = (
            stats_bodies.ConsumeQueueData(entry.commit_log_offset, entry.size, entry.tags_code)
            for entry in queue.entries(header.index, header.count)
        )
        body = stats_bodies.QueryConsumeQueueResponseBody(
            queue.min_offset, queue.max_offset, tuple(entries), subscription, filter_data
        )
        return Reply(remark=NO_CODE, body=body.to_json())

    async def _relay(
        self, request: RemotingCommand, group: str, client_id: str, fields: Mapping[str, str], body: bytes = b""
    ) -> Reply:
        """Forward a request to a member. Returns its response unchanged."""
        client = self._broker.consumers.find_client(group, client_id)
        if client is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        try:
            reply = await client.channel.call(request.code, fields, body, timeout_seconds=CALL_SECONDS)
        except (RemotingTimeoutError, RemotingClosedError) as error:  # RocketMQ waits, even if the member disconnects
            remark = f"consumer <{group}> <{client_id}> Timeout: {error}"
            raise Refusal(ResponseCode.CONSUME_MSG_TIMEOUT, remark) from None
        return Reply(reply.code, reply.remark, reply.ext_fields, reply.body)

    async def _held_offsets(
        self, client: ClientChannel, status_request: group_headers.GetConsumerStatusRequestHeader
    ) -> Mapping[MessageQueue, int] | None:
        try:
            reply = await client.channel.call(
                status_request.code, status_request.ext_fields(), timeout_seconds=STATUS_SECONDS
            )
            if reply.code != ResponseCode.SUCCESS or not reply.body:
                return None
            return GetConsumerStatusBody.from_json(reply.body).message_queue_table
        except (RemotingTimeoutError, RemotingClosedError, ProtocolError) as error:
            log.warning(
                "broker.member_silent", client_id=client.client_id, code=int(status_request.code), error=str(error)
            )
            return None

    def _topic(self, topic: str) -> TopicConfig:
        config = self._broker.topics.get(topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker.name, queue_id)

    def _place(
        self, group: str, topic: str, queues: int, *, with_pulled: bool
    ) -> dict[MessageQueue, stats_bodies.OffsetWrapper]:
        broker, result = self._broker, {}
        for queue_id in range(queues):
            committed = broker.offsets.get(group, topic, queue_id) or 0
            pulled = max(committed, broker.offsets.pulled_offset(group, topic, queue_id) or 0) if with_pulled else 0
            last = self._store_time(topic, queue_id, committed - 1)
            end = broker.store.max_offset(topic, queue_id)
            result[self._queue(topic, queue_id)] = stats_bodies.OffsetWrapper(end, committed, pulled, max(0, last))
        return result

    def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._broker.store
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        first = self._store_time(topic, queue_id, low)
        committed = self._broker.offsets.get(group, topic, queue_id)
        place = -1 if committed is None else committed
        consumed = self._store_time(topic, queue_id, place - 1) if place > 0 else first
        delay = 0
        if place < high:  # without a committed offset (-1), no message is found: the delay is the time since 1970
            delay = int(self._broker.clock.wall() * 1000) - self._store_time(topic, queue_id, place)
        return QueueTimeSpan(
            self._queue(topic, queue_id), first, self._store_time(topic, queue_id, high - 1), consumed, delay
        )

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        entry = self._broker.store.entry(topic, queue_id, offset)
        return _NO_TIME if entry is None else entry.store_timestamp
