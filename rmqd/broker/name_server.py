"""The name server's side: where topics are (105, 106, 206 …; `ClientRequestProcessor`, `DefaultRequestProcessor`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqd.broker.channel import Channel
from rmqd.broker.reply import Processors, Refusal, Reply
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.cluster import ClusterInfo, TopicList
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.route import GetRouteInfoRequestHeader
from rmqd.wire.route import BrokerData, QueueData, TopicRouteData

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


class NameServer:
    """Knows one broker, and reads its topics where they are."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
        }

    def route(self, channel: Channel, request: RemotingCommand) -> Reply:
        """105."""
        header = GetRouteInfoRequestHeader.from_ext_fields(request.ext_fields)
        config = self._broker.topics.get(header.topic)
        if config is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}\n"
                "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.",
            )
        queues = QueueData(
            self._broker.name, config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag
        )
        return Reply(body=TopicRouteData((queues,), (self._broker_data(),)).to_json())

    def cluster(self, channel: Channel, request: RemotingCommand) -> Reply:
        """106."""
        name, cluster = self._broker.name, self._broker.settings.brokerClusterName
        return Reply(body=ClusterInfo({name: self._broker_data()}, {cluster: (name,)}).to_json())

    def topics(self, channel: Channel, request: RemotingCommand) -> Reply:
        """206."""
        return Reply(body=TopicList(tuple(self._broker.topics.all())).to_json())

    def _broker_data(self) -> BrokerData:
        settings = self._broker.settings
        return BrokerData(settings.brokerClusterName, settings.brokerName, {0: self._broker.address})
