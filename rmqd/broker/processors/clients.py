"""Heartbeats and unregistrations (`ClientManageProcessor.java`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqd.broker.channel import Channel
from rmqd.broker.members import ClientChannel
from rmqd.broker.processors.base import RequestProcessor, answers
from rmqd.broker.reply import Reply
from rmqd.codes import RequestCode
from rmqd.wire.bodies.heartbeat import ConsumerData, HeartbeatData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.group import UnregisterClientRequestHeader
from rmqd.wire.topics import retry_topic

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController

_HAS_UNIT_SUB: Final = 2  # Java: TopicSysFlag.FLAG_UNIT_SUB


class ClientManageProcessor(RequestProcessor):
    """Answers heartbeats and unregistrations."""

    def __init__(self, broker: BrokerController) -> None:
        super().__init__(broker)
        self._fingerprints: dict[str, int] = {}

    @answers(RequestCode.HEART_BEAT)
    def heartbeat(self, channel: Channel, request: RemotingCommand) -> Reply:
        """HEART_BEAT (34): update members and subscriptions of groups. A group that must not be created is ignored."""
        broker = self._broker
        data = HeartbeatData.from_json(request.body)
        now = broker.now()
        channel.on_close(self._closed)
        sub_change = False
        for consumer in data.consumer_data_set:
            sub_change |= self._fingerprint_changed(consumer.group_name, data.heartbeat_fingerprint)
            config = broker.groups.find(consumer.group_name)
            if config is None:
                continue
            self._make_retry_topic(consumer, config.retry_queue_nums)
            broker.consumers.register(
                consumer,
                ClientChannel(channel, data.client_id, request.language, request.version, now),
                notify=config.notify_consumer_ids_changed_enable,
                without_sub=data.without_sub and data.heartbeat_fingerprint != 0,
            )
        for group in data.producer_groups:
            broker.producers.register(
                group, ClientChannel(channel, data.client_id, request.language, request.version, now)
            )
        if data.heartbeat_fingerprint == 0:
            sub_change = True  # a heartbeat of the first version always has subscriptions
        return Reply(
            ext_fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if sub_change else "false"}
        )

    @answers(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UNREGISTER_CLIENT (35): a client leaves a group."""
        broker = self._broker
        # The client id may be missing, because the connection identifies the member.
        header = UnregisterClientRequestHeader.from_ext_fields({"clientID": "", **request.ext_fields})
        if header.producer_group is not None:
            broker.producers.unregister(header.producer_group, channel)
        if header.consumer_group is not None:
            config = broker.groups.find(header.consumer_group)
            notify = config is None or config.notify_consumer_ids_changed_enable
            broker.consumers.unregister(header.consumer_group, channel, notify=notify)
        return Reply()

    def _fingerprint_changed(self, group: str, fingerprint: int) -> bool:
        """Return whether the group's subscriptions differ. If so, the client sends all of them next time."""
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
            topic_sys_flag=_HAS_UNIT_SUB if consumer.unit_mode else 0,
        )

    def _closed(self, channel: Channel) -> None:
        self._broker.producers.channel_closed(channel)
        self._broker.consumers.channel_closed(channel)
