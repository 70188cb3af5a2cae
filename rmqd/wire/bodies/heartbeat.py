"""What a client tells the brokers about its groups: HeartbeatData and its parts (bodies of 34 and 46)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from rmqd.wire import fields, loose_json

EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SQL92: Final = "SQL92"
SUBSCRIPTION_ALL: Final = "*"


class ConsumeType(StrEnum):
    """How the group gets its messages. A push consumer is passive, in POP mode too."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether the members of a group share the messages or each get all of them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without a stored offset starts."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """A group's subscription to one topic; a later `sub_version` (milliseconds) replaces an earlier one."""

    topic: str
    sub_string: str = SUBSCRIPTION_ALL
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = EXPRESSION_TAG
    class_filter_mode: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": sorted(self.code_set),
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": sorted(self.tags_set),
            "topic": self.topic,
        }

    def to_json(self) -> bytes:
        """The body."""
        return loose_json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a subscription")
        return cls(
            topic=fields.text(data, "topic"),
            sub_string=fields.text(data, "subString", SUBSCRIPTION_ALL),
            tags_set=frozenset(fields.texts(data, "tagsSet")),
            code_set=frozenset(fields.as_integer(code, "codeSet") for code in fields.items(data, "codeSet")),
            sub_version=fields.integer(data, "subVersion", 0),
            expression_type=fields.text(data, "expressionType", EXPRESSION_TAG),
            class_filter_mode=fields.boolean(data, "classFilterMode"),
        )

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body. Raises ProtocolError."""
        return cls.from_dict(fields.body_object(body))


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group in a heartbeat. The set of subscriptions replaces what the broker had."""

    group_name: str
    subscription_data_set: tuple[SubscriptionData, ...]
    consume_type: str = ConsumeType.PASSIVELY
    message_model: str = MessageModel.CLUSTERING
    consume_from_where: str = ConsumeFromWhere.LAST_OFFSET
    unit_mode: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "consumeFromWhere": str(self.consume_from_where),
            "consumeType": str(self.consume_type),
            "groupName": self.group_name,
            "messageModel": str(self.message_model),
            "subscriptionDataSet": [subscription.to_dict() for subscription in self.subscription_data_set],
            "unitMode": self.unit_mode,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a consumer group")
        subscriptions = fields.items(data, "subscriptionDataSet")
        return cls(
            group_name=fields.text(data, "groupName"),
            subscription_data_set=tuple(SubscriptionData.from_dict(item) for item in subscriptions),
            consume_type=fields.text(data, "consumeType", ConsumeType.PASSIVELY),
            message_model=fields.text(data, "messageModel", MessageModel.CLUSTERING),
            consume_from_where=fields.text(data, "consumeFromWhere", ConsumeFromWhere.LAST_OFFSET),
            unit_mode=fields.boolean(data, "unitMode"),
        )


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """A whole heartbeat: one client, its producer groups by name, and its consumer groups."""

    client_id: str
    consumer_data_set: tuple[ConsumerData, ...] = ()
    producer_groups: tuple[str, ...] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False

    def to_json(self) -> bytes:
        """The body of request 34."""
        return loose_json.dumps(
            {
                "clientID": self.client_id,
                "consumerDataSet": [consumer.to_dict() for consumer in self.consumer_data_set],
                "heartbeatFingerprint": self.heartbeat_fingerprint,
                "producerDataSet": [{"groupName": group} for group in self.producer_groups],
                "withoutSub": self.without_sub,
            }
        )

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of request 34. Raises ProtocolError."""
        data = fields.body_object(body)
        producers = fields.items(data, "producerDataSet")
        return cls(
            client_id=fields.text(data, "clientID"),
            consumer_data_set=tuple(ConsumerData.from_dict(item) for item in fields.items(data, "consumerDataSet")),
            producer_groups=tuple(fields.text(fields.as_object(item, "a producer"), "groupName") for item in producers),
            heartbeat_fingerprint=fields.integer(data, "heartbeatFingerprint", 0),
            without_sub=fields.boolean(data, "withoutSub"),
        )


@dataclass(frozen=True, slots=True)
class CheckClientRequestBody:
    """Asks a broker whether it can serve a subscription (46); only needed for SQL."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None

    def to_json(self) -> bytes:
        """The body of request 46."""
        value: dict[str, Any] = {
            "clientId": self.client_id,
            "group": self.group,
            "subscriptionData": self.subscription_data.to_dict(),
        }
        if self.namespace:
            value["namespace"] = self.namespace
        return loose_json.dumps(value)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of request 46. Raises ProtocolError."""
        data = fields.body_object(body)
        return cls(
            client_id=fields.text(data, "clientId"),
            group=fields.text(data, "group"),
            subscription_data=SubscriptionData.from_dict(data.get("subscriptionData")),
            namespace=fields.optional_text(data, "namespace"),
        )
