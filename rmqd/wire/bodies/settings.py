"""How brokers keep topics and groups: TopicConfig (351), SubscriptionGroupConfig (200, 201, 225, 352), and whether a
group pulls or pops a topic (401, 402)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.data_version import DataVersion
from rmqd.wire.bodies.route import PERM_READ, PERM_WRITE

READ_FORBIDDEN: Final = 4


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

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    def to_json(self) -> bytes:
        """The body of the reply to 351."""
        return loose_json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 351. Raises ProtocolError."""
        return cls.from_dict(fields.body_object(body))

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a topic's settings")
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


@dataclass(frozen=True, slots=True)
class CreateTopicListRequestBody:
    """Topics to make or change together."""

    topic_config_list: tuple[TopicConfig, ...]

    def to_json(self) -> bytes:
        """The body of request 18."""
        return loose_json.dumps({"topicConfigList": [config.to_dict() for config in self.topic_config_list]})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of request 18. Raises ProtocolError."""
        items = fields.items(fields.body_object(body), "topicConfigList")
        return cls(tuple(TopicConfig.from_dict(item) for item in items))


@dataclass(frozen=True, slots=True)
class TopicConfigSerializeWrapper:
    """Topics of a broker by name. Static topics, whose mappings a real broker adds, are left empty here."""

    topic_config_table: dict[str, TopicConfig]
    data_version: DataVersion = field(default_factory=DataVersion)

    def to_json(self) -> bytes:
        """The body of the reply to 21."""
        return loose_json.dumps(
            {
                "dataVersion": self.data_version.to_dict(),
                "mappingDataVersion": DataVersion().to_dict(),
                "topicConfigTable": {name: config.to_dict() for name, config in self.topic_config_table.items()},
                "topicQueueMappingDetailMap": {},
                "topicQueueMappingInfoMap": {},
            }
        )

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 21. Raises ProtocolError."""
        data = fields.body_object(body)
        return cls(
            {
                fields.as_text(name, "a topic"): TopicConfig.from_dict(value)
                for name, value in fields.mapping(data, "topicConfigTable").items()
            },
            DataVersion.from_dict(fields.mapping(data, "dataVersion")),
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
    group_retry_policy: Mapping[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    """Of POP and gRPC clients; kept as it came."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "attributes": self.attributes,
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minute,
            "groupName": self.group_name,
            "groupRetryPolicy": dict(self.group_retry_policy),
            "groupSysFlag": self.group_sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }

    def to_json(self) -> bytes:
        """The body of request 200 and of the reply to 352."""
        return loose_json.dumps(self.to_dict())

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
            group_retry_policy=fields.mapping(data, "groupRetryPolicy") or {"type": "CUSTOMIZED"},
        )


@dataclass(frozen=True, slots=True)
class SubscriptionGroupWrapper:
    """Groups of a broker by name, and the version of the table that they are from."""

    subscription_group_table: Mapping[str, SubscriptionGroupConfig]
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By group and topic, what the group may not do there, as bits: READ_FORBIDDEN."""

    def to_json(self) -> bytes:
        """The body of the reply to 201."""
        return loose_json.dumps(
            {
                "dataVersion": self.data_version.to_dict(),
                "forbiddenTable": {group: dict(topics) for group, topics in self.forbidden_table.items()},
                "subscriptionGroupTable": {
                    name: config.to_dict() for name, config in self.subscription_group_table.items()
                },
            }
        )

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 201. Raises ProtocolError."""
        data = fields.body_object(body)
        table = fields.mapping(data, "subscriptionGroupTable").items()
        return cls(
            {fields.as_text(name, "a group"): SubscriptionGroupConfig.from_dict(value) for name, value in table},
            DataVersion.from_dict(fields.mapping(data, "dataVersion")),
            {
                fields.as_text(group, "a group"): {
                    fields.as_text(topic, "a topic"): fields.as_integer(bits, "forbiddenTable")
                    for topic, bits in fields.as_object(topics, "forbiddenTable").items()
                }
                for group, topics in fields.mapping(data, "forbiddenTable").items()
            },
        )


@dataclass(frozen=True, slots=True)
class GroupForbidden:
    """Whether a group may read a topic."""

    group: str
    topic: str
    readable: bool

    def to_json(self) -> bytes:
        """The body of the reply to 353."""
        return loose_json.dumps({"group": self.group, "readable": self.readable, "topic": self.topic})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 353. Raises ProtocolError."""
        data = fields.body_object(body)
        return cls(fields.text(data, "group"), fields.text(data, "topic"), fields.boolean(data, "readable"))


def subscription_group_list_from_json(body: bytes) -> tuple[SubscriptionGroupConfig, ...]:
    """Read the body of request 225. Raises ProtocolError."""
    return tuple(map(SubscriptionGroupConfig.from_dict, fields.items(fields.body_object(body), "groupConfigList")))


@dataclass(frozen=True, slots=True)
class SetMessageRequestModeRequestBody:
    """Whether a group pulls a topic or pops it, and then how many members share a queue."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "consumerGroup": self.consumer_group,
            "mode": self.mode,
            "popShareQueueNum": self.pop_share_queue_num,
            "topic": self.topic,
        }

    def to_json(self) -> bytes:
        """The body of request 401."""
        return loose_json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, body: bytes | str) -> Self:
        """Read the body of request 401. Raises ProtocolError."""
        return cls.from_dict(fields.body_object(body))

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "how a group reads a topic")
        return cls(
            fields.text(data, "topic"),
            fields.text(data, "consumerGroup"),
            fields.text(data, "mode", "PULL"),
            fields.integer(data, "popShareQueueNum", 0),
        )


def request_modes_from_json(body: bytes) -> dict[tuple[str, str], SetMessageRequestModeRequestBody]:
    """Read the body of the reply to 402: what was set by 401, by topic and group. Raises ProtocolError."""
    table = fields.mapping(fields.body_object(body), "messageRequestModeMap")
    modes = [
        SetMessageRequestModeRequestBody.from_dict(mode)
        for groups in table.values()
        for mode in fields.as_object(groups, "the modes of a topic").values()
    ]
    return {(mode.topic, mode.consumer_group): mode for mode in modes}
