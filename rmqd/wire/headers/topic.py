"""Headers of what administrators ask a broker about topics as such."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicRequestHeader(RequestHeader, code=RequestCode.DELETE_TOPIC_IN_BROKER):
    """Deletes a topic, its messages, and the groups' offsets in it."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfigRequestHeader(RequestHeader, code=RequestCode.GET_ALL_TOPIC_CONFIG):
    """Asks for every topic, or for `max_topic_num` of them from number `topic_seq` on, in one version of the table."""

    topic_seq: int | None = None
    data_version: str | None = None
    max_topic_num: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfigResponseHeader(Header):
    """The reply to GET_ALL_TOPIC_CONFIG (21), whose body may hold fewer topics than there are."""

    total_topic_num: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicConsumeByWhoRequestHeader(RequestHeader, code=RequestCode.QUERY_TOPIC_CONSUME_BY_WHO):
    """Asks which groups consume a topic."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicsByConsumerRequestHeader(RequestHeader, code=RequestCode.QUERY_TOPICS_BY_CONSUMER):
    """Asks in which topics a group has offsets."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueueRequestHeader(RequestHeader, code=RequestCode.QUERY_CONSUME_QUEUE):
    """Asks for entries of a queue's index, and whether a group's filter takes them."""

    topic: str
    queue_id: int
    index: int = 0
    count: int = 0
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewBrokerStatsDataRequestHeader(RequestHeader, code=RequestCode.VIEW_BROKER_STATS_DATA):
    """Asks for one of the broker's counters."""

    stats_name: str
    stats_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStatsInBrokerHeader(RequestHeader, code=RequestCode.GET_BROKER_CONSUME_STATS):
    """Asks how far every group is; with `is_order` in ordered topics only."""

    is_order: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GetProducerConnectionListRequestHeader(RequestHeader, code=RequestCode.GET_PRODUCER_CONNECTION_LIST):
    """Asks for a group's producers."""

    producer_group: str
