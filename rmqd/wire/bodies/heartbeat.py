"""HeartbeatData: a client's report on its groups to the brokers; and a subscription to check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from rmqd.wire import fields
from rmqd.wire.bodies.base import Body, Wire
from rmqd.wire.fields import Named

EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SQL92: Final = "SQL92"
SUBSCRIPTION_ALL: Final = "*"


class ConsumeType(StrEnum):
    """How the group receives its messages. A push consumer is passive, in POP mode as well."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """How members share the messages: divide them, get all of them, or get only lite topics."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"
    LITE_SELECTIVE = "LITE_SELECTIVE"


class ConsumeFromWhere(StrEnum):
    """The start offset of a group without a stored offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class SubscriptionData(Body, called="a subscription"):
    """A group's subscription to one topic. A later `sub_version` (milliseconds) replaces an earlier one."""

    topic: str
    sub_string: str = SUBSCRIPTION_ALL
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = EXPRESSION_TAG
    class_filter_mode: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerData(Body, called="a consumer group"):
    """One consumer group in a heartbeat. Its subscriptions replace the broker's previous copy."""

    group_name: str
    subscription_data_set: tuple[SubscriptionData, ...]
    consume_type: str = ConsumeType.PASSIVELY
    message_model: str = MessageModel.CLUSTERING
    consume_from_where: str = ConsumeFromWhere.LAST_OFFSET
    unit_mode: bool = False


def _read_producers(value: object, what: str) -> tuple[str, ...]:
    return tuple(fields.text(fields.as_object(item, "a producer"), "groupName") for item in fields.as_list(value, what))


def _write_producers(groups: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"groupName": group} for group in groups]


@dataclass(frozen=True, slots=True)
class HeartbeatData(Body):
    """HEART_BEAT (34): one client, its producer groups by name, and its consumer groups."""

    client_id: Annotated[str, Named("clientID")]
    consumer_data_set: tuple[ConsumerData, ...] = ()
    producer_groups: Annotated[
        tuple[str, ...], Named("producerDataSet"), Wire(read=_read_producers, write=_write_producers)
    ] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


@dataclass(frozen=True, slots=True)
class CheckClientRequestBody(Body):
    """CHECK_CLIENT_CONFIG (46): asks a broker whether it supports a subscription. Only needed for SQL."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: Annotated[str | None, Wire(last=True, write=lambda name: name or None)] = None
