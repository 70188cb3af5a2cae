"""Clients' requests about their groups: heartbeats, subscriptions, members, offsets and queue locks.

Java: `ClientManageProcessor`, `ConsumerManageProcessor`, and `AdminBrokerProcessor` for lists of connections and locks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from rmqd.broker.filter.message_filter import compile_filter_expression, is_tag_type
from rmqd.broker.filter.sql_condition import ExpressionError
from rmqd.broker.member_registry import ClientChannel
from rmqd.broker.peer_channel import Channel, Refusal, Reply
from rmqd.broker.processors.processor_base import RequestProcessor, answers
from rmqd.broker.processors.pull_processor import no_property_filter
from rmqd.broker.topic_registry import UNIT_SUB
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ProtocolError
from rmqd.wire.bodies import group_bodies
from rmqd.wire.bodies.heartbeat_data import CheckClientRequestBody, ConsumerData, HeartbeatData
from rmqd.wire.bodies.route_data import TopicList
from rmqd.wire.bodies.stats_bodies import Connection, ConsumerConnection
from rmqd.wire.command import RemotingCommand
from rmqd.wire.fields import parse_integer
from rmqd.wire.headers import group_headers, topic_headers
from rmqd.wire.topics import retry_topic

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class ClientProcessor(RequestProcessor):
    """The processor of heartbeats, offsets and queue locks, and of queries for members and subscriptions."""

    def __init__(self, broker: BrokerController) -> None:
        super().__init__(broker)
        self._fingerprints: dict[str, int] = {}

    @answers(RequestCode.HEART_BEAT)
    def heartbeat(self, channel: Channel, request: RemotingCommand) -> Reply:
        """HEART_BEAT (34): update members and subscriptions of groups. A group that cannot be created is ignored."""
        broker = self._broker
        data = HeartbeatData.from_json(request.body)
        make_client = partial(ClientChannel, channel, data.client_id, request.language, request.version, broker.now())
        channel.on_close(self._closed)
        sub_change = False
        for consumer in data.consumer_data_set:
            sub_change |= self._fingerprint_changed(consumer.group_name, data.heartbeat_fingerprint)
            config = broker.groups.find_or_create(consumer.group_name)
            if config is None:
                continue
            self._make_retry_topic(consumer, config.retry_queue_nums)
            broker.consumers.register(
                consumer,
                make_client(),
                notify=config.notify_consumer_ids_changed_enable,
                without_sub=data.without_sub and data.heartbeat_fingerprint != 0,
            )
        for group in data.producer_groups:
            broker.producers.register(group, make_client())
        if data.heartbeat_fingerprint == 0:
            sub_change = True  # a heartbeat of version 1, which has no fingerprint, always has subscriptions
        return Reply(
            ext_fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if sub_change else "false"}
        )

    @answers(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UNREGISTER_CLIENT (35): remove a client from a producer group, a consumer group, or both."""
        broker = self._broker
        # The request may omit the client id, because the connection identifies the client.
        header = group_headers.UnregisterClientRequestHeader.from_ext_fields({"clientID": "", **request.ext_fields})
        if header.producer_group is not None:
            broker.producers.unregister(header.producer_group, channel)
        if header.consumer_group is not None:
            config = broker.groups.find_or_create(header.consumer_group)
            notify = config is None or config.notify_consumer_ids_changed_enable
            broker.consumers.unregister(header.consumer_group, channel, notify=notify)
        return Reply()

    @answers(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumers(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_CONSUMER_CONNECTION_LIST (203) with a group's members and subscriptions."""
        header = group_headers.GetConsumerConnectionListRequestHeader.from_ext_fields(request.ext_fields)
        info = self._broker.consumers.get(header.consumer_group)
        if info is None:
            text = f"the consumer group[{header.consumer_group}] not online"
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, text)
        body = ConsumerConnection(
            tuple(map(_connection, info.channels.values())),
            dict(info.subscriptions),
            info.consume_type,
            info.message_model,
            info.consume_from_where,
        )
        return Reply(body=body.to_json())

    @answers(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producers(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_PRODUCER_CONNECTION_LIST (204) with the producers of a group."""
        header = topic_headers.GetProducerConnectionListRequestHeader.from_ext_fields(request.ext_fields)
        clients = self._broker.producers.get(header.producer_group)
        if not clients:
            text = f"the producer group[{header.producer_group}] not exist"
            raise Refusal(ResponseCode.SYSTEM_ERROR, text)
        return Reply(body=group_bodies.ProducerConnection(tuple(map(_connection, clients))).to_json())

    @answers(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_ALL_PRODUCER_INFO (328) with the producers of all groups."""
        wall, now = self._broker.clock.wall(), self._broker.now()
        groups = {
            group: tuple(
                group_bodies.ProducerInfo(
                    client.client_id,
                    f"/{client.channel.address}",  # Java writes a slash before an address
                    client.language.name,
                    client.version,
                    int((wall - now + client.heard_at) * 1000),
                )
                for client in clients
            )
            for group, clients in self._broker.producers.all().items()
        }
        return Reply(body=group_bodies.ProducerTableInfo(groups).to_json())

    @answers(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups_of_topic(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer QUERY_TOPIC_CONSUME_BY_WHO (300) with the groups that subscribe to a topic or have an offset in it."""
        topic = topic_headers.QueryTopicConsumeByWhoRequestHeader.from_ext_fields(request.ext_fields).topic
        online = (info.group for info in self._broker.consumers.all() if topic in info.subscriptions)
        groups = dict.fromkeys([*online, *self._broker.offsets.groups_of(topic)])
        return Reply(body=group_bodies.GroupList(tuple(groups)).to_json())

    @answers(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def topics_of_group(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer QUERY_TOPICS_BY_CONSUMER (343) with the topics in which a group committed an offset."""
        header = topic_headers.QueryTopicsByConsumerRequestHeader.from_ext_fields(request.ext_fields)
        return Reply(
            body=TopicList(tuple(self._broker.offsets.topics_of(header.group)), self._broker.address).to_json()
        )

    @answers(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer QUERY_SUBSCRIPTION_BY_CONSUMER (345) with a group's subscription to a topic, from its heartbeats."""
        header = group_headers.QuerySubscriptionByConsumerRequestHeader.from_ext_fields(request.ext_fields)
        info = self._broker.consumers.get(header.group)
        data = None if info is None or header.topic is None else info.subscriptions.get(header.topic)
        return Reply(body=group_bodies.QuerySubscriptionResponseBody(header.group, header.topic, data).to_json())

    @answers(RequestCode.CHECK_CLIENT_CONFIG)
    def check(self, channel: Channel, request: RemotingCommand) -> Reply:
        """CHECK_CLIENT_CONFIG (46): reject a subscription whose SQL92 condition cannot be parsed."""
        if not request.body:
            return Reply()
        subscription = CheckClientRequestBody.from_json(request.body).subscription_data
        kind = subscription.expression_type
        if is_tag_type(kind):
            return Reply()
        if not self._broker.settings.enablePropertyFilter:
            raise Refusal(ResponseCode.SYSTEM_ERROR, no_property_filter(kind))
        try:
            compile_filter_expression(kind, subscription.sub_string)
        except ExpressionError as error:
            raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        return Reply()

    @answers(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_CONSUMER_LIST_BY_GROUP (38) with the client ids of a group's members."""
        header = group_headers.GetConsumerListByGroupRequestHeader.from_ext_fields(request.ext_fields)
        info = self._broker.consumers.get(header.consumer_group)
        if info is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
        return Reply(body=group_bodies.GetConsumerListByGroupResponseBody(tuple(info.client_ids)).to_json())

    @answers(RequestCode.QUERY_CONSUMER_OFFSET)
    def query_offset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer QUERY_CONSUMER_OFFSET (14). A missing offset is 0 if the queue still has its first message."""
        header = group_headers.QueryConsumerOffsetRequestHeader.from_ext_fields(request.ext_fields)
        offset = self._broker.offsets.get(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            if header.set_zero_if_not_found is False:
                raise Refusal(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
                )
            if not self._has_first_message(header.topic, header.queue_id):
                raise Refusal(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                )
            offset = 0
        return Reply(ext_fields=group_headers.OffsetResponseHeader(offset=offset).ext_fields())

    @answers(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update_offset(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_CONSUMER_OFFSET (15): commit an offset, unless an operator's reset is pending."""
        broker, fields = self._broker, request.ext_fields
        group, topic = fields.get("consumerGroup", ""), fields.get("topic", "")
        if broker.groups.get(group) is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if broker.topics.get(topic) is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        queue_id = _number(fields, "queueId", f"QueueId is null, topic is {topic}")
        offset = _number(fields, "commitOffset", f"Offset is null, topic is {topic}")
        if broker.offsets.pending_reset(group, topic, queue_id) is not None:
            return Reply(remark="Offset has been previously reset")
        broker.offsets.commit(group, topic, queue_id, offset)
        return Reply()

    @answers(RequestCode.LOCK_BATCH_MQ)
    def lock(self, channel: Channel, request: RemotingCommand) -> Reply:
        """LOCK_BATCH_MQ (41): lock queues. The response has the queues that the client has locked now."""
        body = group_bodies.LockBatchRequestBody.from_json(request.body)
        got = self._broker.locks.lock(body.consumer_group, body.client_id, body.queues)
        return Reply(body=group_bodies.LockBatchResponseBody(got).to_json())

    @answers(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UNLOCK_BATCH_MQ (42): unlock the queues that the client has locked."""
        body = group_bodies.LockBatchRequestBody.from_json(request.body)
        self._broker.locks.unlock(body.consumer_group, body.client_id, body.queues)
        return Reply()

    def _fingerprint_changed(self, group: str, fingerprint: int) -> bool:
        """Return whether a group's subscriptions changed. The client's next heartbeat then has all subscriptions."""
        known = self._fingerprints.get(group)
        self._fingerprints[group] = fingerprint
        return known not in (None, fingerprint)

    def _make_retry_topic(self, consumer: ConsumerData, queues: int) -> None:
        topics = self._broker.topics
        configs = [topics.get(one.topic) for one in consumer.subscription_data_set]
        topics.create_in_send_back(
            retry_topic(consumer.group_name),
            queues,
            order=any(config is not None and config.order for config in configs),
            topic_sys_flag=UNIT_SUB if consumer.unit_mode else 0,
        )

    def _closed(self, channel: Channel) -> None:
        self._broker.producers.channel_closed(channel)
        self._broker.consumers.channel_closed(channel)

    def _has_first_message(self, topic: str, queue_id: int) -> bool:
        """Return whether the queue still has its first message. RocketMQ also checks that this message is in memory."""
        queue = self._broker.store.queue(topic, queue_id)
        return queue is not None and queue.min_offset == 0 and queue.max_offset > 0


def _connection(client: ClientChannel) -> Connection:
    return Connection(client.client_id, client.channel.address, client.language.name, client.version)


def _number(fields: Mapping[str, str], name: str, remark: str) -> int:
    """Read a field as Java does: a value that cannot be parsed counts as missing."""
    try:
        return parse_integer(fields.get(name, ""), name)
    except ProtocolError:
        raise Refusal(ResponseCode.INVALID_PARAMETER, remark) from None
