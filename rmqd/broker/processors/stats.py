"""Offsets, times and rates of topics and groups (`AdminBrokerProcessor.java`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqd.broker import broker_stats
from rmqd.broker.channel import Channel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import NO_CODE, Refusal, Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.consume_queue import ConsumeQueueData, QueryConsumeQueueResponseBody
from rmqd.wire.bodies.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    TopicOffset,
    TopicStatsTable,
)
from rmqd.wire.bodies.time_span import QueryConsumeTimeSpanBody, QueueTimeSpan
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.admin import (
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from rmqd.wire.headers.topic import (
    GetConsumeStatsInBrokerHeader,
    QueryConsumeQueueRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmqd.wire.bodies.settings import TopicConfig

_NO_TIME: Final = -1


class StatsProcessor(RequestProcessor):
    """Answers requests about offsets, times and rates."""

    @answers(RequestCode.GET_TOPIC_STATS_INFO)
    def topic_stats(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_TOPIC_STATS_INFO (202): the ends of each queue of a topic."""
        config = self._topic(GetTopicStatsInfoRequestHeader.from_ext_fields(request.ext_fields).topic)
        store, topic, table = self._broker.store, config.topic_name, dict[MessageQueue, TopicOffset]()
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            end = store.max_offset(topic, queue_id)
            last = max(0, self._store_time(topic, queue_id, end - 1))
            table[self._queue(topic, queue_id)] = TopicOffset(store.min_offset(topic, queue_id), end, last)
        return Reply(body=TopicStatsTable(table, self._broker.stats.put_per_second(topic)).to_json())

    @answers(RequestCode.GET_CONSUME_STATS)
    def consume_stats(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_CONSUME_STATS (208): a group's offsets in a topic, or in all its subscribed topics with offsets."""
        header = GetConsumeStatsRequestHeader.from_ext_fields(request.ext_fields)
        group = header.consumer_group
        if header.topic_list:
            topics = [topic for topic in header.topic_list.split(";") if topic]
        else:
            asked = [header.topic] if (header.topic or "").strip() else self._broker.offsets.topics_of(group)
            topics = [topic for topic in asked if topic and self._broker.consumers.may_consume(group, topic)]
        table, tps = dict[MessageQueue, OffsetWrapper](), 0.0
        for topic in dict.fromkeys(topics):
            config = self._broker.topics.get(topic)
            if config is not None:
                table |= self._place(group, topic, config.read_queue_nums, with_pulled=True)
                tps += self._broker.stats.get_per_second(group, topic)
        return Reply(body=ConsumeStats(table, tps).to_json())

    @answers(RequestCode.GET_BROKER_CONSUME_STATS)
    def all_consume_stats(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_BROKER_CONSUME_STATS (317): the offsets of every group."""
        header = GetConsumeStatsInBrokerHeader.from_ext_fields(request.ext_fields)
        broker, groups = self._broker, dict[str, tuple[ConsumeStats, ...]]()
        for group in broker.groups.all():
            stats = []
            for topic in broker.offsets.topics_of(group):
                config = broker.topics.get(topic)
                if config is None or (header.is_order and not config.order):
                    continue
                if not broker.consumers.may_consume(group, topic):
                    continue
                place = self._place(group, topic, config.write_queue_nums, with_pulled=False)
                stats.append(ConsumeStats(place, broker.stats.get_per_second(group, topic)))
            groups[group] = tuple(stats)
        return Reply(body=ConsumeStatsList(groups, broker.address).to_json())

    @answers(RequestCode.QUERY_CONSUME_TIME_SPAN)
    def time_span(self, channel: Channel, request: RemotingCommand) -> Reply:
        """QUERY_CONSUME_TIME_SPAN (303): times of the first, the last and the first unhandled message of each queue."""
        header = QueryConsumeTimeSpanRequestHeader.from_ext_fields(request.ext_fields)
        config = self._topic(header.topic)
        spans = (self._span(header.group, header.topic, number) for number in range(config.write_queue_nums))
        return Reply(body=QueryConsumeTimeSpanBody(tuple(spans)).to_json())

    @answers(RequestCode.VIEW_BROKER_STATS_DATA)
    def counter(self, channel: Channel, request: RemotingCommand) -> Reply:
        """VIEW_BROKER_STATS_DATA (315): a counter over the last minute, hour and day."""
        header = ViewBrokerStatsDataRequestHeader.from_ext_fields(request.ext_fields)
        gained = self._broker.stats.named(header.stats_name, header.stats_key)
        if gained is None:
            text = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            raise Refusal(ResponseCode.SYSTEM_ERROR, text)
        spans = (broker_stats.MINUTE, broker_stats.HOUR, broker_stats.DAY)
        return Reply(body=BrokerStatsData(*(BrokerStatsItem(*gained(seconds)) for seconds in spans)).to_json())

    @answers(RequestCode.QUERY_CONSUME_QUEUE)
    def consume_queue(self, channel: Channel, request: RemotingCommand) -> Reply:
        """QUERY_CONSUME_QUEUE (321): entries of a queue's index."""
        header = QueryConsumeQueueRequestHeader.from_ext_fields(request.ext_fields)
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
            # Java's response has its filter as JSON, only for SQL92
            filter_data = f"{header.consumer_group}@{topic} is not online!" if subscription is None else "null"
        entries = (
            ConsumeQueueData(entry.commit_log_offset, entry.size, entry.tags_code)
            for entry in queue.entries(header.index, header.count)
        )
        body = QueryConsumeQueueResponseBody(
            queue.min_offset,
            queue.max_offset,
            tuple(entries),
            subscription,
            filter_data,
        )
        return Reply(remark=NO_CODE, body=body.to_json())

    def _topic(self, topic: str) -> TopicConfig:
        config = self._broker.topics.get(topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker.name, queue_id)

    def _place(self, group: str, topic: str, queues: int, *, with_pulled: bool) -> dict[MessageQueue, OffsetWrapper]:
        broker, result = self._broker, {}
        for queue_id in range(queues):
            committed = broker.offsets.get(group, topic, queue_id) or 0
            pulled = max(committed, broker.offsets.pulled(group, topic, queue_id) or 0) if with_pulled else 0
            last = self._store_time(topic, queue_id, committed - 1)
            end = broker.store.max_offset(topic, queue_id)
            result[self._queue(topic, queue_id)] = OffsetWrapper(end, committed, pulled, max(0, last))
        return result

    def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._broker.store
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        first = self._store_time(topic, queue_id, low)
        committed = self._broker.offsets.get(group, topic, queue_id)
        place = -1 if committed is None else committed
        consumed = self._store_time(topic, queue_id, place - 1) if place > 0 else first
        delay = 0
        if place < high:  # if the group has no offset, this is the age of a message that does not exist
            delay = int(self._broker.clock.wall() * 1000) - self._store_time(topic, queue_id, place)
        return QueueTimeSpan(
            self._queue(topic, queue_id), first, self._store_time(topic, queue_id, high - 1), consumed, delay
        )

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        queue = self._broker.store.queue(topic, queue_id)
        entry = None if queue is None else queue.entry(offset)
        return _NO_TIME if entry is None else entry.store_timestamp
