"""Headers of administrative requests: topics, routes, statistics of groups, single messages, key-value settings."""

from __future__ import annotations

from rmqd.codes import RequestCode
from rmqd.wire.headers.request_header import Header, RequestHeader
from rmqd.wire.topics import DEFAULT_TOPIC


class DeleteTopicRequestHeader(RequestHeader, code=RequestCode.DELETE_TOPIC_IN_BROKER):
    """Deletes a topic, its messages, and all groups' offsets in it."""

    topic: str


class GetAllTopicConfigRequestHeader(RequestHeader, code=RequestCode.GET_ALL_TOPIC_CONFIG):
    """Asks for all topics; or for `max_topic_num` topics from index `topic_seq` on, in one version of the table."""

    topic_seq: int | None = None
    data_version: str | None = None
    max_topic_num: int | None = None


class QueryTopicConsumeByWhoRequestHeader(RequestHeader, code=RequestCode.QUERY_TOPIC_CONSUME_BY_WHO):
    topic: str


class QueryTopicsByConsumerRequestHeader(RequestHeader, code=RequestCode.QUERY_TOPICS_BY_CONSUMER):
    """Asks for the topics in which a group has offsets."""

    group: str


class QueryConsumeQueueRequestHeader(RequestHeader, code=RequestCode.QUERY_CONSUME_QUEUE):
    """Asks for `count` entries of a queue's index, from offset `index` on, and for the subscription of a group."""

    topic: str
    queue_id: int
    index: int = 0
    count: int = 0
    consumer_group: str | None = None


class ViewBrokerStatsDataRequestHeader(RequestHeader, code=RequestCode.VIEW_BROKER_STATS_DATA):
    """Asks for one of the broker's counters: the counter of `stats_key` in the statistic `stats_name`."""

    stats_name: str
    stats_key: str


class GetConsumeStatsInBrokerHeader(RequestHeader, code=RequestCode.GET_BROKER_CONSUME_STATS):
    """Asks for the offsets of every group in all topics; with `is_order`, only in ordered topics."""

    is_order: bool


class GetProducerConnectionListRequestHeader(RequestHeader, code=RequestCode.GET_PRODUCER_CONNECTION_LIST):
    """Asks for the connected producers of a producer group."""

    producer_group: str


class CreateTopicRequestHeader(RequestHeader, code=RequestCode.UPDATE_AND_CREATE_TOPIC):
    """Creates or changes a topic on one broker. `attributes` sets and removes attributes: "+key=value,-key"."""

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


class GetTopicConfigRequestHeader(RequestHeader, code=RequestCode.GET_TOPIC_CONFIG):
    """Asks for a topic's settings; with `lo`, also for the queue mapping of a static topic."""

    topic: str
    lo: bool | None = None


class GetTopicStatsInfoRequestHeader(RequestHeader, code=RequestCode.GET_TOPIC_STATS_INFO):
    """Asks for the first and the next offset of each queue of a topic."""

    topic: str


class GetConsumeStatsRequestHeader(RequestHeader, code=RequestCode.GET_CONSUME_STATS):
    """Asks for a group's offsets in `topic`, in `topic_list` (separated by semicolons), or in all topics."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class QueryConsumeTimeSpanRequestHeader(RequestHeader, code=RequestCode.QUERY_CONSUME_TIME_SPAN):
    """Asks for the age of a group's unhandled messages in a topic."""

    topic: str
    group: str


class QueryMessageRequestHeader(RequestHeader, code=RequestCode.QUERY_MESSAGE):
    """Asks for messages by key, stored between two times in milliseconds since 1970."""

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    index_type: str | None = None


class ViewMessageRequestHeader(RequestHeader, code=RequestCode.VIEW_MESSAGE_BY_ID):
    """Asks for the message at a commit log offset."""

    offset: int


class GetRouteInfoRequestHeader(RequestHeader, code=RequestCode.GET_ROUTEINFO_BY_TOPIC):
    """Asks for a topic's route: its brokers and queues. `accept_standard_json_only` asks for strict JSON."""

    topic: str
    accept_standard_json_only: bool | None = None


class PutKVConfigRequestHeader(RequestHeader, code=RequestCode.PUT_KV_CONFIG):
    """Stores a value in a name server's key-value table. Keys belong to a namespace of this table."""

    namespace: str
    key: str
    value: str | None = None


class GetKVConfigRequestHeader(RequestHeader, code=RequestCode.GET_KV_CONFIG):
    """Asks for a value in a name server's key-value table."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header):
    """The response to GET_KV_CONFIG (101): a value of a name server's key-value table."""

    value: str | None = None


class DeleteKVConfigRequestHeader(RequestHeader, code=RequestCode.DELETE_KV_CONFIG):
    namespace: str
    key: str


class GetKVListByNamespaceRequestHeader(RequestHeader, code=RequestCode.GET_KVLIST_BY_NAMESPACE):
    """Asks for all keys and values of one namespace in a name server's key-value table."""

    namespace: str


class GetTopicsByClusterRequestHeader(RequestHeader, code=RequestCode.GET_TOPICS_BY_CLUSTER):
    cluster: str | None = None


class WipeWritePermOfBrokerRequestHeader(RequestHeader, code=RequestCode.WIPE_WRITE_PERM_OF_BROKER):
    """Removes a broker's write permission, so that producers stop using it."""

    broker_name: str


class AddWritePermOfBrokerRequestHeader(RequestHeader, code=RequestCode.ADD_WRITE_PERM_OF_BROKER):
    """Restores a broker's write permission, so that producers use it again."""

    broker_name: str


class DeleteTopicFromNamesrvRequestHeader(RequestHeader, code=RequestCode.DELETE_TOPIC_IN_NAMESRV):
    """Removes a topic from the name server until the broker registers it again."""

    topic: str
    cluster_name: str | None = None
