"""Settings of topics and groups as brokers store them, and whether a group pulls or pops a topic.

A topic's attributes determine its kind, which mqadmin shows (Java: TopicAttributes, TopicFilterType). If a kind is
unknown here, rmqd could misread the topic, because brokers may store or count its messages in another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final

from rmqd.wire import fields
from rmqd.wire.bodies.json_body import Body, DataVersion, Group, Topic, WireOptions
from rmqd.wire.bodies.route_data import PERM_READ, PERM_WRITE

READ_FORBIDDEN_BIT: Final = 4


class TopicConfig(Body, called="a topic's settings", kw_only=True):
    """The response to GET_TOPIC_CONFIG (351): the settings of a topic on one broker."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class CreateTopicListRequestBody(Body):
    """The body of UPDATE_AND_CREATE_TOPIC_LIST (18): topics to create or change with one request."""

    topic_config_list: tuple[TopicConfig, ...]


class TopicConfigSerializeWrapper(Body):
    """The response to GET_ALL_TOPIC_CONFIG (21): the settings of a broker's topics, by topic name.

    RocketMQ's brokers add the mappings of static topics. These are not read here, and written empty.
    """

    constants: ClassVar[Mapping[str, Any]] = {
        "mappingDataVersion": DataVersion().to_dict(),
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }

    topic_config_table: dict[Topic, TopicConfig]
    data_version: DataVersion = field(default_factory=DataVersion)


_CUSTOMIZED: Final[Mapping[str, Any]] = {"type": "CUSTOMIZED"}


def _read_policy(value: object, what: str) -> Mapping[str, Any]:
    return fields.as_object(value, what) or dict(_CUSTOMIZED)


class SubscriptionGroupConfig(Body, called="a group's settings", kw_only=True):
    """The settings of a consumer group on one broker. `retry_max_times` applies if a send-back contains no limit.

    The body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200), and the response to GET_SUBSCRIPTIONGROUP_CONFIG (352).
    """

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
    group_retry_policy: Annotated[Mapping[str, Any], WireOptions(read=_read_policy)] = field(
        default_factory=lambda: dict(_CUSTOMIZED)
    )
    """The retry policy for POP and gRPC clients. rmqd stores it, and does not interpret it."""


class SubscriptionGroupList(Body):
    """The body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225): groups to create or change with one request."""

    group_config_list: tuple[SubscriptionGroupConfig, ...]


class SubscriptionGroupWrapper(Body):
    """The response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): a broker's group settings, and their version."""

    subscription_group_table: Mapping[Group, SubscriptionGroupConfig]
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: Mapping[Group, Mapping[Topic, int]] = field(default_factory=dict)
    """Bits of the actions that are forbidden to a group on a topic. The only known bit is READ_FORBIDDEN_BIT."""


class GroupForbidden(Body):
    """The response to UPDATE_AND_GET_GROUP_FORBIDDEN (353): whether a group may read a topic."""

    group: str
    topic: str
    readable: bool = False


class SetMessageRequestModeRequestBody(Body, called="how a group reads a topic"):
    """The body of SET_MESSAGE_REQUEST_MODE (401): whether a group pulls or pops a topic.

    If it pops, `pop_share_queue_num` is the number of members that share a queue.
    """

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0


def request_modes_from_json(body: bytes) -> dict[tuple[str, str], SetMessageRequestModeRequestBody]:
    """Read the response to GET_ALL_MESSAGE_REQUEST_MODE (402): the modes that operators have set, by topic and group.

    Raises ProtocolError.
    """
    table = fields.optional_object(fields.body_object(body), "messageRequestModeMap")
    modes = [
        SetMessageRequestModeRequestBody.from_dict(mode)
        for groups in table.values()
        for mode in fields.as_object(groups, "the modes of a topic").values()
    ]
    return {(mode.topic, mode.consumer_group): mode for mode in modes}


MESSAGE_TYPE: Final = "message.type"
QUEUE_TYPE: Final = "queue.type"
CLEANUP_POLICY: Final = "cleanup.policy"
MIXED: Final = "MIXED"
LITE: Final = "LITE"
BATCH_QUEUE_TYPE: Final = "BatchCQ"
MESSAGE_TYPES: Final = ("UNSPECIFIED", MIXED, "TRANSACTION", "PRIORITY", "FIFO", "DELAY", LITE, "NORMAL")
CLEANUP_POLICIES: Final = ("COMPACTION", "DELETE")
"""Values of the attributes message.type and cleanup.policy, in the order in which Java's brokers list them."""

_KNOWN: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        MESSAGE_TYPE: frozenset(MESSAGE_TYPES),
        QUEUE_TYPE: frozenset({"SimpleCQ", BATCH_QUEUE_TYPE, "RocksDBCQ"}),
        CLEANUP_POLICY: frozenset(CLEANUP_POLICIES),
    }
)
_FILTER_TYPES: Final = frozenset({"SINGLE_TAG", "MULTI_TAG"})


def unknown_attributes(topic: TopicConfig) -> list[str]:
    """Return the settings of a topic whose values rmqd does not know, each as `name=value`."""
    marks = [(name, topic.attributes[name], known) for name, known in _KNOWN.items() if name in topic.attributes]
    marks.append(("topicFilterType", topic.topic_filter_type, _FILTER_TYPES))
    return [f"{name}={value}" for name, value, known in marks if value not in known]
