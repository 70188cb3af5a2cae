"""Headers of what administrators and tests ask: topics, groups, statistics, single messages, settings."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader
from rmqd.wire.topics import DEFAULT_TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicRequestHeader(RequestHeader, code=RequestCode.UPDATE_AND_CREATE_TOPIC):
    """Makes or changes a topic on one broker. `attributes` is Java's "+key=value,-key"."""

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
    """Asks how far a group is, in one topic or in all, or in a list of them, separated by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeTimeSpanRequestHeader(RequestHeader, code=RequestCode.QUERY_CONSUME_TIME_SPAN):
    """Asks how old the messages are that a group has not handled yet."""

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
    """How far the broker's index of keys has come."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageRequestHeader(RequestHeader, code=RequestCode.VIEW_MESSAGE_BY_ID):
    """Asks for the message at a commit log offset."""

    offset: int
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigResponseHeader(Header):
    """The reply to GET_BROKER_CONFIG (26): how often the settings changed, a DataVersion in JSON."""

    version: str
