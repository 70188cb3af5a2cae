"""Headers of requests of administrators and tests: topics, groups, statistics, single messages, settings."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader
from rmqd.wire.topics import DEFAULT_TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicRequestHeader(RequestHeader, code=RequestCode.UPDATE_AND_CREATE_TOPIC):
    """Creates or changes a topic on one broker. `attributes` is Java's "+key=value,-key"."""

    topic: str
    default_topic: str = DEFAULT_TOPIC
    read_queue_nums: int
    write_queue_nums: int
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int | None = 0
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicConfigRequestHeader(RequestHeader, code=RequestCode.GET_TOPIC_CONFIG):
    """Asks for a topic's configuration; with `lo` also for the mapping of a static topic."""

    topic: str
    lo: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicStatsInfoRequestHeader(RequestHeader, code=RequestCode.GET_TOPIC_STATS_INFO):
    """Asks for the offsets at the ends of a topic's queues."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumeStatsRequestHeader(RequestHeader, code=RequestCode.GET_CONSUME_STATS):
    """Asks for a group's offsets in one topic, in all topics, or in a list of topics separated by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeTimeSpanRequestHeader(RequestHeader, code=RequestCode.QUERY_CONSUME_TIME_SPAN):
    """Asks for the age of a group's unhandled messages."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageRequestHeader(RequestHeader, code=RequestCode.QUERY_MESSAGE):
    """Asks for messages by key, stored between two times in milliseconds."""

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    index_type: str | None = None
    last_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageResponseHeader(Header):
    """The progress of the broker's key index."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageRequestHeader(RequestHeader, code=RequestCode.VIEW_MESSAGE_BY_ID):
    """Asks for the message at a commit log offset."""

    offset: int
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigResponseHeader(Header):
    """The response to GET_BROKER_CONFIG (26): the version of the settings, a DataVersion in JSON."""

    version: str
