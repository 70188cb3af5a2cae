"""Connected producers and consumers, and their topics (`AdminBrokerProcessor.java`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.channel import Channel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import Refusal, Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.cluster import TopicList
from rmqd.wire.bodies.group import GroupList, QuerySubscriptionResponseBody
from rmqd.wire.bodies.producers import ProducerConnection, ProducerInfo, ProducerTableInfo
from rmqd.wire.bodies.stats import Connection, ConsumerConnection
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group import GetConsumerConnectionListRequestHeader, QuerySubscriptionByConsumerRequestHeader
from rmqd.wire.headers.topic import (
    GetProducerConnectionListRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)

if TYPE_CHECKING:
    from rmqd.broker.members import ClientChannel


class ConnectionsProcessor(RequestProcessor):
    """Answers which clients are connected, and which topics groups subscribe to."""

    @answers(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumers(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_CONSUMER_CONNECTION_LIST (203): a group's members."""
        header = GetConsumerConnectionListRequestHeader.from_ext_fields(request.ext_fields)
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
        """GET_PRODUCER_CONNECTION_LIST (204): a group's producers."""
        header = GetProducerConnectionListRequestHeader.from_ext_fields(request.ext_fields)
        clients = self._broker.producers.get(header.producer_group)
        if not clients:
            text = f"the producer group[{header.producer_group}] not exist"
            raise Refusal(ResponseCode.SYSTEM_ERROR, text)
        return Reply(body=ProducerConnection(tuple(map(_connection, clients))).to_json())

    @answers(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self, channel: Channel, request: RemotingCommand) -> Reply:
        """GET_ALL_PRODUCER_INFO (328): the producers of all groups."""
        wall, now = self._broker.clock.wall(), self._broker.now()
        groups = {
            group: tuple(
                ProducerInfo(
                    client.client_id,
                    f"/{client.channel.address}",  # in Java's notation of an address
                    client.language.name,
                    client.version,
                    int((wall - now + client.heard_at) * 1000),
                )
                for client in clients
            )
            for group, clients in self._broker.producers.all().items()
        }
        return Reply(body=ProducerTableInfo(groups).to_json())

    @answers(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups_of_topic(self, channel: Channel, request: RemotingCommand) -> Reply:
        """QUERY_TOPIC_CONSUME_BY_WHO (300): groups that subscribe to the topic or committed an offset in it."""
        topic = QueryTopicConsumeByWhoRequestHeader.from_ext_fields(request.ext_fields).topic
        online = (info.group for info in self._broker.consumers.all() if topic in info.subscriptions)
        groups = dict.fromkeys([*online, *self._broker.offsets.groups_of(topic)])
        return Reply(body=GroupList(tuple(groups)).to_json())

    @answers(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def topics_of_group(self, channel: Channel, request: RemotingCommand) -> Reply:
        """QUERY_TOPICS_BY_CONSUMER (343): topics in which the group committed an offset."""
        header = QueryTopicsByConsumerRequestHeader.from_ext_fields(request.ext_fields)
        return Reply(
            body=TopicList(tuple(self._broker.offsets.topics_of(header.group)), self._broker.address).to_json()
        )

    @answers(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, channel: Channel, request: RemotingCommand) -> Reply:
        """QUERY_SUBSCRIPTION_BY_CONSUMER (345): a group's subscription to a topic, from its members' heartbeats."""
        header = QuerySubscriptionByConsumerRequestHeader.from_ext_fields(request.ext_fields)
        info = self._broker.consumers.get(header.group)
        data = None if info is None or header.topic is None else info.subscriptions.get(header.topic)
        return Reply(body=QuerySubscriptionResponseBody(header.group, header.topic, data).to_json())


def _connection(client: ClientChannel) -> Connection:
    return Connection(client.client_id, client.channel.address, client.language.name, client.version)
