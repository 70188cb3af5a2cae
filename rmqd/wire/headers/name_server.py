"""Headers of what administrators ask a name server: its keys and values, topics, and brokers' permissions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class PutKVConfigRequestHeader(RequestHeader):
    """Keeps a value under a key of a namespace."""

    code: ClassVar[RequestCode] = RequestCode.PUT_KV_CONFIG

    namespace: str
    key: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfigRequestHeader(RequestHeader):
    """Asks for a value."""

    code: ClassVar[RequestCode] = RequestCode.GET_KV_CONFIG

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfigResponseHeader(Header):
    """The reply to 101."""

    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteKVConfigRequestHeader(RequestHeader):
    """Forgets a value."""

    code: ClassVar[RequestCode] = RequestCode.DELETE_KV_CONFIG

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVListByNamespaceRequestHeader(RequestHeader):
    """Asks for all values of a namespace."""

    code: ClassVar[RequestCode] = RequestCode.GET_KVLIST_BY_NAMESPACE

    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicsByClusterRequestHeader(RequestHeader):
    """Asks for the topics of a cluster."""

    code: ClassVar[RequestCode] = RequestCode.GET_TOPICS_BY_CLUSTER

    cluster: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBrokerRequestHeader(RequestHeader):
    """Has producers leave a broker: its topics are told without the permission to write."""

    code: ClassVar[RequestCode] = RequestCode.WIPE_WRITE_PERM_OF_BROKER

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBrokerResponseHeader(Header):
    """The reply to 205."""

    wipe_topic_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermOfBrokerRequestHeader(RequestHeader):
    """Has producers come back."""

    code: ClassVar[RequestCode] = RequestCode.ADD_WRITE_PERM_OF_BROKER

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermOfBrokerResponseHeader(Header):
    """The reply to 327."""

    add_topic_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicFromNamesrvRequestHeader(RequestHeader):
    """Takes a topic off the name server, until the broker registers it again."""

    code: ClassVar[RequestCode] = RequestCode.DELETE_TOPIC_IN_NAMESRV

    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterTopicRequestHeader(RequestHeader):
    """Tells the name server of a topic that no broker registered."""

    code: ClassVar[RequestCode] = RequestCode.REGISTER_TOPIC_IN_NAMESRV

    topic: str
