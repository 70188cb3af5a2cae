"""Headers of requests to a name server: routes; for administrators its keys, topics and brokers' permissions."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteInfoRequestHeader(RequestHeader, code=RequestCode.GET_ROUTEINFO_BY_TOPIC):
    """Asks for a topic's route."""

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PutKVConfigRequestHeader(RequestHeader, code=RequestCode.PUT_KV_CONFIG):
    """Sets a key of a namespace."""

    namespace: str
    key: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfigRequestHeader(RequestHeader, code=RequestCode.GET_KV_CONFIG):
    """Asks for the value of a key of a namespace."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfigResponseHeader(Header):
    """The response to GET_KV_CONFIG (101)."""

    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteKVConfigRequestHeader(RequestHeader, code=RequestCode.DELETE_KV_CONFIG):
    """Deletes a key of a namespace."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVListByNamespaceRequestHeader(RequestHeader, code=RequestCode.GET_KVLIST_BY_NAMESPACE):
    """Asks for all keys of a namespace with their values."""

    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicsByClusterRequestHeader(RequestHeader, code=RequestCode.GET_TOPICS_BY_CLUSTER):
    """Asks for the topics of a cluster."""

    cluster: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBrokerRequestHeader(RequestHeader, code=RequestCode.WIPE_WRITE_PERM_OF_BROKER):
    """Removes a broker's write permission, so that producers stop using it."""

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBrokerResponseHeader(Header):
    """The response to WIPE_WRITE_PERM_OF_BROKER (205): the number of changed topics."""

    wipe_topic_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermOfBrokerRequestHeader(RequestHeader, code=RequestCode.ADD_WRITE_PERM_OF_BROKER):
    """Restores a broker's write permission, so that producers use it again."""

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermOfBrokerResponseHeader(Header):
    """The response to ADD_WRITE_PERM_OF_BROKER (327): the number of changed topics."""

    add_topic_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicFromNamesrvRequestHeader(RequestHeader, code=RequestCode.DELETE_TOPIC_IN_NAMESRV):
    """Removes a topic from the name server until the broker registers it again."""

    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterTopicRequestHeader(RequestHeader, code=RequestCode.REGISTER_TOPIC_IN_NAMESRV):
    """Registers a topic that no broker has registered."""

    topic: str
