"""Headers of administrators' requests about topics of a broker."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicRequestHeader(RequestHeader, code=RequestCode.DELETE_TOPIC_IN_BROKER):
    """Deletes a topic, its messages, and all groups' offsets in it."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfigRequestHeader(RequestHeader, code=RequestCode.GET_ALL_TOPIC_CONFIG):
    """Asks for all topics, or for `max_topic_num` topics from number `topic_seq`, in one version of the table."""

    topic_seq: int | None = None
    data_version: str | None = None
    max_topic_num: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllTopicConfigResponseHeader(Header):
    """The response to GET_ALL_TOPIC_CONFIG (21). Its body may hold fewer topics than exist."""

    total_topic_num: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicConsumeByWhoRequestHeader(RequestHeader, code=RequestCode.QUERY_TOPIC_CONSUME_BY_WHO):
    """Asks which groups consume a topic."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTopicsByConsumerRequestHeader(RequestHeader, code=RequestCode.QUERY_TOPICS_BY_CONSUMER):
    """Asks for the topics in which a group has offsets."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueueRequestHeader(RequestHeader, code=RequestCode.QUERY_CONSUME_QUEUE):
    """Asks for entries of a queue's index, and whether a group's filter passes them."""

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
    """Asks for the offsets of every group; with `is_order` only in ordered topics."""

    is_order: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GetProducerConnectionListRequestHeader(RequestHeader, code=RequestCode.GET_PRODUCER_CONNECTION_LIST):
    """Asks for a group's producers."""

    producer_group: str
