"""The name server: routes of topics, and key-value settings that administrators store by namespace.

It knows only the broker in its own process. Other brokers cannot register (REGISTER_BROKER, 103, is unsupported).
Java: `ClientRequestProcessor`, `DefaultRequestProcessor`, `RouteInfoManager`, `KVConfigManager`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from rmqd.broker.broker_settings import NameServerSettings
from rmqd.broker.peer_channel import SEE_FAQ, Channel, Refusal, Reply
from rmqd.broker.processors.processor_base import RequestProcessor, answers
from rmqd.broker.store.journal import Journal, JournalKind
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies import route_data
from rmqd.wire.bodies.config_bodies import TopicConfig
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers import topic_headers as headers
from rmqd.wire.loose_json import dump_properties, load_properties

if TYPE_CHECKING:
    from rmqd.broker.controller import BrokerController


MAX_CHARACTERS: Final = 64 * 1024
MAX_ENTRIES: Final = 1000


class KVConfigManager:
    """The key-value settings of a name server: string values by namespace and key."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._tables: dict[str, dict[str, str]] = {}
        for row, value in journal.items(JournalKind.KEY_VALUE):
            namespace, key = json.loads(row)
            self._tables.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key; None if the key is missing."""
        return self._tables.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Store a value. Raises Refusal if it is too long, or if the limit of keys is reached."""
        known = self.get(namespace, key)
        if len(namespace) + len(key) + len(value) > MAX_CHARACTERS:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the key or its value is too long; expected at most {MAX_CHARACTERS} characters",
            )
        if known is None and sum(map(len, self._tables.values())) >= MAX_ENTRIES:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the name server stores at most {MAX_ENTRIES} keys")
        self._tables.setdefault(namespace, {})[key] = value
        self._journal.put(JournalKind.KEY_VALUE, json.dumps([namespace, key]), value)

    def delete(self, namespace: str, key: str) -> None:
        """Delete a key. As on the real name server, the namespace stays, even if it is empty."""
        if self._tables.get(namespace, {}).pop(key, None) is not None:
            self._journal.delete(JournalKind.KEY_VALUE, json.dumps([namespace, key]))

    def table(self, namespace: str) -> dict[str, str] | None:
        """Return all keys and values of a namespace; None if the namespace never had a key."""
        table = self._tables.get(namespace)
        return None if table is None else dict(table)


log = structlog.get_logger(__name__)

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"  # the namespace with the queues of ordered topics, by topic
CLUSTER_ID: Final = ("RMQD", "cluster_id")  # the namespace and key that rmqd uses for the id of a cluster
REGISTER_SECONDS: Final = 30.0  # Java: registerNameServerPeriod
_JAVA_NULL: Final = "null"  # Java's remark has this topic if the request has no topic
_STRICT_JSON_SINCE: Final = 401  # 4.9.4: clients since this version can read strict JSON
_READ_WRITE: Final = route_data.PERM_READ | route_data.PERM_WRITE
_PROTECTED: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})


class _OwnView(NamedTuple):
    """An administrator's change of a topic's route. `queues` is None if the topic was deleted on the name server.

    The change is valid until `until` (loop time), when a real broker would register again, or until the broker changes
    the topic's configuration, which is `config` until then.
    """

    config: TopicConfig | None
    queues: route_data.QueueData | None
    until: float = float("inf")


class NameServer(RequestProcessor):
    """The name server of one broker. It reads the broker's topics directly, without registrations."""

    def __init__(self, broker: BrokerController) -> None:
        super().__init__(broker)
        self.settings = NameServerSettings()
        self._key_values = KVConfigManager(broker.journal)
        # create the cluster id: otherwise the first member creates it, and waits until other members have read it
        if self._key_values.get(*CLUSTER_ID) is None:
            self._key_values.put(*CLUSTER_ID, f"{broker.now_ms():012x}{secrets.token_hex(4)}")
        self._own: dict[str, _OwnView] = {}
        self._now = asyncio.get_running_loop().time

    @answers(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def route(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_ROUTEINFO_BY_TOPIC (105) with a topic's route, in strict JSON if the client can read it."""
        header = headers.GetRouteInfoRequestHeader.from_ext_fields({"topic": _JAVA_NULL, **request.ext_fields})
        queues = self._queues(header.topic)
        if queues is None:
            text = f"No topic route info in name server for the topic: {header.topic}{SEE_FAQ}"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, text)
        ordered = self._key_values.get(ORDER_TOPIC_CONFIG, header.topic) if self.settings.orderMessageEnable else None
        strict = request.version >= _STRICT_JSON_SINCE or header.accept_standard_json_only is True
        static = self._broker.static_topics.get(header.topic)
        mappings = () if static is None else (static.as_mapping_info(),)
        route = route_data.TopicRouteData((queues,), (self._broker_data(),), ordered, mappings)
        return Reply(body=route.to_json(strict=strict))

    @answers(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_BROKER_CLUSTER_INFO (106) with the only broker and its cluster."""
        name, cluster = self._broker.name, self._broker.settings.brokerClusterName
        return Reply(body=route_data.ClusterInfo({name: self._broker_data()}, {cluster: (name,)}).to_json())

    @answers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def topics(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206) with the names of all topics."""
        _refuse_unless(self.settings.enableAllTopicList)
        return Reply(body=route_data.TopicList(tuple(self._view())).to_json())

    @answers(RequestCode.GET_TOPICS_BY_CLUSTER)
    def topics_of_cluster(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_TOPICS_BY_CLUSTER (224) with the names of a cluster's topics."""
        _refuse_unless(self.settings.enableTopicList)
        header = headers.GetTopicsByClusterRequestHeader.from_ext_fields(request.ext_fields)
        own = header.cluster == self._broker.settings.brokerClusterName
        return Reply(body=route_data.TopicList(tuple(self._view()) if own else ()).to_json())

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def system_topics(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_SYSTEM_TOPIC_LIST_FROM_NS (304) with the names of cluster and broker, which are also topics."""
        names = (self._broker.settings.brokerClusterName, self._broker.name)
        return Reply(body=route_data.TopicList(names, self._broker.address).to_json())

    @answers(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, channel: Channel, request: RemotingCommand) -> Reply:
        """DELETE_TOPIC_IN_NAMESRV (216): hide a topic for REGISTER_SECONDS, or until the broker changes it."""
        header = headers.DeleteTopicFromNamesrvRequestHeader.from_ext_fields(request.ext_fields)
        if not header.cluster_name or header.cluster_name == self._broker.settings.brokerClusterName:
            config = self._broker.topics.get_registered(header.topic)
            self._own[header.topic] = _OwnView(config, None, self._now() + REGISTER_SECONDS)
        return Reply()

    @answers(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    def wipe_write_perm(self, channel: Channel, request: RemotingCommand) -> Reply:
        """WIPE_WRITE_PERM_OF_BROKER (205): omit write permission from each route until the broker changes the topic."""
        header = headers.WipeWritePermOfBrokerRequestHeader.from_ext_fields(request.ext_fields)
        count = self._change_perms(header.broker_name, lambda perm: perm & ~route_data.PERM_WRITE)
        return Reply(ext_fields={"wipeTopicCount": str(count)})

    @answers(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def add_write_perm(self, channel: Channel, request: RemotingCommand) -> Reply:
        """ADD_WRITE_PERM_OF_BROKER (327): make each route readable and writable, whatever the topic's permission is."""
        header = headers.AddWritePermOfBrokerRequestHeader.from_ext_fields(request.ext_fields)
        count = self._change_perms(header.broker_name, lambda perm: _READ_WRITE)
        return Reply(ext_fields={"addTopicCount": str(count)})

    @answers(RequestCode.PUT_KV_CONFIG)
    def put_kv(self, channel: Channel, request: RemotingCommand) -> Reply:
        """PUT_KV_CONFIG (100): set a key of a namespace, or delete it if the request has no value."""
        header = headers.PutKVConfigRequestHeader.from_ext_fields(request.ext_fields)
        if header.value is None:
            self._key_values.delete(header.namespace, header.key)
        else:
            self._key_values.put(header.namespace, header.key, header.value)
        return Reply()

    @answers(RequestCode.GET_KV_CONFIG)
    def get_kv(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_KV_CONFIG (101) with the value of a key in a namespace."""
        header = headers.GetKVConfigRequestHeader.from_ext_fields(request.ext_fields)
        value = self._key_values.get(header.namespace, header.key)
        if value is None:
            raise _no_item(header.namespace, f" Key: {header.key}")
        return Reply(ext_fields=headers.GetKVConfigResponseHeader(value=value).ext_fields())

    @answers(RequestCode.DELETE_KV_CONFIG)
    def delete_kv(self, channel: Channel, request: RemotingCommand) -> Reply:
        """DELETE_KV_CONFIG (102): delete a key of a namespace."""
        header = headers.DeleteKVConfigRequestHeader.from_ext_fields(request.ext_fields)
        self._key_values.delete(header.namespace, header.key)
        return Reply()

    @answers(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def kv_list(self, channel: Channel, request: RemotingCommand) -> Reply:
        """Answer GET_KVLIST_BY_NAMESPACE (219) with all keys and values of a namespace."""
        header = headers.GetKVListByNamespaceRequestHeader.from_ext_fields(request.ext_fields)
        table = self._key_values.table(header.namespace)
        if table is None:
            raise _no_item(header.namespace)
        return Reply(body=route_data.KVTable(table).to_json())

    @answers(RequestCode.UPDATE_NAMESRV_CONFIG)
    def update_settings(self, channel: Channel, request: RemotingCommand) -> Reply:
        """UPDATE_NAMESRV_CONFIG (318): change the name server's settings until the process ends."""
        values = load_properties(request.body)
        if _PROTECTED & values.keys():
            raise Refusal(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        self.settings, ignored = self.settings.updated(values)
        if ignored:
            log.warning("broker.settings_ignored", server="name server", settings=ignored)
        return Reply()

    @answers(RequestCode.GET_NAMESRV_CONFIG)
    def get_settings(self, channel: Channel, request: RemotingCommand) -> Reply:
        return Reply(body=dump_properties(self.settings.as_properties()))

    def _change_perms(self, broker_name: str, change: Callable[[int], int]) -> int:
        if broker_name != self._broker.name:
            return 0
        view = self._view()
        for topic, queues in view.items():
            self._own[topic] = _OwnView(
                self._broker.topics.get_registered(topic), replace(queues, perm=change(queues.perm))
            )
        return len(view)

    def _view(self) -> dict[str, route_data.QueueData]:
        """Return the topics that clients see, with their queues."""
        names = dict.fromkeys([*self._broker.topics.all(), *self._own])
        return {topic: queues for topic in names if (queues := self._queues(topic)) is not None}

    def _queues(self, topic: str) -> route_data.QueueData | None:
        config, own = self._broker.topics.get_registered(topic), self._own.get(topic)
        if own is not None:
            if own.config is config and self._now() < own.until:
                return own.queues
            del self._own[topic]
        if config is None:
            return None
        # a broker without read or write permission registers its topics without this permission
        permission = self._broker.settings.brokerPermission
        perm = config.perm if permission & _READ_WRITE == _READ_WRITE else config.perm & permission
        return route_data.QueueData(
            self._broker.name, config.read_queue_nums, config.write_queue_nums, perm, config.topic_sys_flag
        )

    def _broker_data(self) -> route_data.BrokerData:
        settings = self._broker.settings
        return route_data.BrokerData(settings.brokerClusterName, settings.brokerName, {0: self._broker.address})


def _refuse_unless(enabled: bool) -> None:
    if not enabled:
        raise Refusal(ResponseCode.SYSTEM_ERROR, "disable")


def _no_item(namespace: str, key: str = "") -> Refusal:
    return Refusal(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}{key}")
