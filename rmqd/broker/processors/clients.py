"""Heartbeats, good-byes, and the check of a subscription (34, 35, 46; `ClientManageProcessor.java`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqd.broker.channel import Channel
from rmqd.broker.members import ClientChannel
from rmqd.broker.reply import Processors, Reply
from rmqd.codes import RequestCode
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group import NotifyConsumerIdsChangedRequestHeader, UnregisterClientRequestHeader
from rmqd.wire.heartbeat import HeartbeatData, MessageModel
from rmqd.wire.topics import retry_topic

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController

_HEARTBEAT_FIELDS: Final = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}


class ClientManageProcessor:
    """Who is there."""

    def __init__(self, broker: BrokerController) -> None:
        self._broker = broker

    def processors(self) -> Processors:
        """The requests that it answers."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
        }

    def heartbeat(self, channel: Channel, request: RemotingCommand) -> Reply:
        """34: members of groups, and their subscriptions."""
        broker = self._broker
        data = HeartbeatData.from_json(request.body)
        client = ClientChannel(channel, data.client_id, request.language, request.version, broker.now())
        channel.on_close(self._gone)
        for consumer in data.consumer_data_set:
            config = broker.groups.find(consumer.group_name)
            if config is None:
                continue
            broker.topics.create_in_send_back(retry_topic(consumer.group_name), config.retry_queue_nums)
            if broker.consumers.register(consumer, client) and consumer.message_model != MessageModel.BROADCASTING:
                self._notify(consumer.group_name)
        for group in data.producer_groups:
            broker.producers.register(group, client)
        return Reply(ext_fields=_HEARTBEAT_FIELDS)

    def unregister(self, channel: Channel, request: RemotingCommand) -> Reply:
        """35: a client leaves a group."""
        header = UnregisterClientRequestHeader.from_ext_fields(request.ext_fields)
        if header.producer_group:
            self._broker.producers.unregister(header.producer_group, channel)
        if header.consumer_group and self._broker.consumers.unregister(header.consumer_group, channel):
            self._notify(header.consumer_group)
        return Reply()

    def _gone(self, channel: Channel) -> None:
        self._broker.producers.forget(channel)
        for group in self._broker.consumers.groups_of(channel):
            self._broker.consumers.unregister(group, channel)
            self._notify(group)

    def _notify(self, group: str) -> None:
        """40, to every member."""
        info, config = self._broker.consumers.get(group), self._broker.groups.get(group)
        if info is None or config is None or not config.notify_consumer_ids_changed_enable:
            return
        header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
        for channel in info.channels:
            channel.send_oneway(header.code, header.ext_fields())
