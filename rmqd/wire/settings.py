"""How brokers keep topics and groups: TopicConfig (351) and SubscriptionGroupConfig (200, 201, 352)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from rmqd.wire import fields, loose_json
from rmqd.wire.route import PERM_READ, PERM_WRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic on one broker."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The body of the reply to 351."""
        return loose_json.dumps(
            {
                "attributes": self.attributes,
                "order": self.order,
                "perm": self.perm,
                "readQueueNums": self.read_queue_nums,
                "topicFilterType": self.topic_filter_type,
                "topicName": self.topic_name,
                "topicSysFlag": self.topic_sys_flag,
                "writeQueueNums": self.write_queue_nums,
            }
        )

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 351. Raises ProtocolError."""
        data = fields.body_object(body)
        return cls(
            topic_name=fields.text(data, "topicName"),
            read_queue_nums=fields.integer(data, "readQueueNums", 16),
            write_queue_nums=fields.integer(data, "writeQueueNums", 16),
            perm=fields.integer(data, "perm", PERM_READ | PERM_WRITE),
            topic_filter_type=fields.text(data, "topicFilterType", "SINGLE_TAG"),
            topic_sys_flag=fields.integer(data, "topicSysFlag", 0),
            order=fields.boolean(data, "order"),
            attributes=fields.text_mapping(data, "attributes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """A consumer group on one broker. `retry_max_times` holds where a send-back does not bring its own."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The body of request 200 and of the reply to 352."""
        value: dict[str, Any] = {
            "attributes": self.attributes,
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minute,
            "groupName": self.group_name,
            "groupSysFlag": self.group_sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }
        return loose_json.dumps(value)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of request 200 or of the reply to 352. Raises ProtocolError."""
        return cls.from_dict(fields.body_object(body))

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a group's settings")
        return cls(
            group_name=fields.text(data, "groupName"),
            consume_enable=fields.boolean(data, "consumeEnable", True),
            consume_from_min_enable=fields.boolean(data, "consumeFromMinEnable", True),
            consume_broadcast_enable=fields.boolean(data, "consumeBroadcastEnable", True),
            consume_message_orderly=fields.boolean(data, "consumeMessageOrderly"),
            retry_queue_nums=fields.integer(data, "retryQueueNums", 1),
            retry_max_times=fields.integer(data, "retryMaxTimes", 16),
            broker_id=fields.integer(data, "brokerId", 0),
            which_broker_when_consume_slowly=fields.integer(data, "whichBrokerWhenConsumeSlowly", 1),
            notify_consumer_ids_changed_enable=fields.boolean(data, "notifyConsumerIdsChangedEnable", True),
            group_sys_flag=fields.integer(data, "groupSysFlag", 0),
            consume_timeout_minute=fields.integer(data, "consumeTimeoutMinute", 15),
            attributes=fields.text_mapping(data, "attributes"),
        )


def subscription_groups_from_json(body: bytes) -> dict[str, SubscriptionGroupConfig]:
    """All groups of a broker by name, from the reply to 201. Raises ProtocolError."""
    table = fields.mapping(fields.body_object(body), "subscriptionGroupTable")
    return {fields.as_text(name, "a group"): SubscriptionGroupConfig.from_dict(value) for name, value in table.items()}
