"""The check before every POP request: whether the group may read the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from rmqd.broker.reply import SEE_FAQ, Refusal
from rmqd.codes import ResponseCode
from rmqd.wire.bodies.route import PERM_READ

if TYPE_CHECKING:
    from rmqd.broker.channel import Channel
    from rmqd.broker.controller import BrokerController
    from rmqd.wire.bodies.settings import TopicConfig

LATE_MS: Final = 500
"""A pop that arrives later than its own waiting time plus this is rejected, because its client no longer waits."""


class QueueOfGroup(Protocol):
    """The common fields of the headers. Queue -1 stands for any queue."""

    @property
    def consumer_group(self) -> str:
        """The group that reads."""

    @property
    def topic(self) -> str:
        """The topic that the group subscribed to."""

    @property
    def queue_id(self) -> int:
        """The id of the queue, or -1."""


def check_reading(broker: BrokerController, channel: Channel, header: QueueOfGroup, doing: str) -> None:
    """Raise Refusal if the group must not read this queue."""
    settings, group, topic = broker.settings, header.consumer_group, header.topic
    if not settings.brokerPermission & PERM_READ:
        raise Refusal(ResponseCode.NO_PERMISSION, f"the broker[{settings.brokerIP1}] {doing} message is forbidden")
    config = known_topic(broker, topic)
    if not config.perm & PERM_READ:
        raise Refusal(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")
    if header.queue_id >= config.read_queue_nums:
        raise Refusal(ResponseCode.INVALID_PARAMETER, illegal_queue(channel, header, config))
    group_config = broker.groups.find(group)
    if group_config is None:
        remark = f"subscription group [{group}] does not exist, {SEE_FAQ}"
        raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if not group_config.consume_enable:
        raise Refusal(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")


def known_topic(broker: BrokerController, topic: str) -> TopicConfig:
    """Return a topic's configuration. Raises Refusal if the topic is missing."""
    config = broker.topics.get(topic)
    if config is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {SEE_FAQ}")
    return config


def illegal_queue(channel: Channel, header: QueueOfGroup, config: TopicConfig) -> str:
    """Return the remark for a queue that the topic does not have."""
    return (
        f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
        f"topicConfig.readQueueNums:[{config.read_queue_nums}] consumer:[/{channel.address}]"
    )
