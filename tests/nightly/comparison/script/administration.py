"""Administrators' requests: topics, groups, settings, offsets of queues, and messages by id and key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.nightly.comparison.script.shapes import (
    consumer,
    found,
    heartbeat,
    offset_fields,
    send,
    subscription,
    topic_fields,
)
from tests.nightly.comparison.traffic import NAME_SERVER, Ask, Frame, Step

TOPIC, GROUP, UNKNOWN = "{mark}_looked_at", "{mark}_lookers", "{mark}_unknown"
STATIC = "{mark}_static"
CLIENT = "127.0.0.1@{mark}_looker"


READ_BY_CLUSTER_LIST = (
    *("putTps", "getTransferredTps", "sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "timerReadBehind"),
    *("sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills"),
    *("earliestMessageTimeStamp", "commitLogDiskRatio", "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps"),
    *("timerDequeueTps", "brokerActive", "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
    *("msgPutTotalYesterdayMorning", "msgGetTotalTodayNow", "msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"),
)


def listed(body: Any, mark: str) -> Any:
    """Select the entries of this run from a list or table of all entries."""
    if isinstance(body, dict):
        return {
            name: item if mark in name else listed(item, mark)
            for name, item in body.items()
            if _is_ours(name, item, mark)
        }
    if isinstance(body, list):
        return [item for item in body if mark in str(item)]
    return body


def _is_ours(name: str, item: Any, mark: str) -> bool:
    return mark in name or mark in str(item) or item == {} or name in ("bare keys", "data", "dataVersion")


def only(*names: str) -> Callable[[Any, str], Any]:
    """Select these names of a table. Missing names become None."""
    return lambda body, mark: {name: (body.get("table", body) or {}).get(name) for name in names}


def present(*names: str) -> Callable[[Any, str], Any]:
    """Compare only whether a table has these names, because their values differ between brokers."""
    return lambda body, mark: {name: name in (body.get("table") or {}) for name in names}


def shape(body: Any, mark: str) -> Any:
    """Return whether the response has a body."""
    return body is not None


def _static(what: str, epoch: int, *, topic: str = STATIC, **changes: object) -> Ask:
    """Create a static topic with two queues on one broker."""
    item = {"gen": 0, "bname": "broker-a", "logicOffset": 0, "startOffset": 0, "endOffset": -1}
    body = {
        "topic": topic,
        "bname": "broker-a",
        "totalQueues": 2,
        "epoch": epoch,
        "scope": "__global__",
        "hostedQueues": {str(queue_id): [{**item, "queueId": queue_id}] for queue_id in range(2)},
    }
    return Ask(what=what, code=513, fields=topic_fields(topic, 2, **changes), body=body)


def _mapped(frame: Frame) -> bool:
    return bool(frame["body"]) and bool(frame["body"].get("topicQueueMappingByBroker"))


def _name_server(what: str, code: int, fields: dict[str, object] | None = None, **changes: Any) -> Ask:
    return Ask(what=what, code=code, fields=fields or {}, to=NAME_SERVER, **changes)


def _queue(what: str, code: int, queue_id: int = 0, topic: str = TOPIC, **changes: object) -> Ask:
    return Ask(what=what, code=code, fields={"topic": topic, "queueId": queue_id, **changes})


def _query(what: str, key: str, **changes: Any) -> Ask:
    fields = {"topic": TOPIC, "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 9999999999999}
    until = changes.pop("until", None)
    return Ask(what=what, code=12, fields=fields | changes, until=until)


TOPICS: list[Step] = [
    Ask(what="make a topic", code=17, fields=topic_fields(TOPIC, 2)),
    Ask(what="make a topic again", code=17, fields=topic_fields(TOPIC, 2)),
    Ask(what="make a topic with a bad name", code=17, fields=topic_fields("bad name")),
    Ask(what="make a topic that is the system's", code=17, fields=topic_fields("SCHEDULE_TOPIC_XXXX")),
    Ask(what="make a topic with a name that is too long", code=17, fields=topic_fields("t" * 128)),
    Ask(what="make a topic without permissions", code=17, fields=topic_fields("{mark}_perm", perm=0)),
    Ask(what="make a topic with strange permissions", code=17, fields=topic_fields("{mark}_perm2", perm=99)),
    Ask(
        what="make a topic of a message type",
        code=17,
        fields=topic_fields("{mark}_fifo", attributes="+message.type=FIFO"),
    ),
    Ask(
        what="make a topic of no message type",
        code=17,
        fields=topic_fields("{mark}_odd", attributes="+message.type=ODD"),
    ),
    Ask(what="make a topic with a strange attribute", code=17, fields=topic_fields("{mark}_odd2", attributes="+a=b")),
    Ask(what="make a topic without a name", code=17, fields={"perm": 6}),
    Ask(
        what="make topics",
        code=18,
        body={"topicConfigList": [{"topicName": "{mark}_listed", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}]},
    ),
    Ask(what="make no topics", code=18, body={"topicConfigList": []}),
    Ask(what="a topic", code=351, fields={"topic": TOPIC}),
    Ask(what="a topic with a message type", code=351, fields={"topic": "{mark}_fifo"}),
    Ask(what="a topic of a list", code=351, fields={"topic": "{mark}_listed"}),
    Ask(what="a topic that is not there", code=351, fields={"topic": UNKNOWN}),
    Ask(what="all topics", code=21, fields={"topicSeq": 0, "maxTopicNum": 10000}, only=listed),
    Ask(what="system topics of the broker", code=305, only=shape),
    _name_server("route", 105, {"topic": TOPIC}, until=found),
    _name_server("route to an old client", 105, {"topic": TOPIC}, version=0),
    _name_server("route in strict JSON", 105, {"topic": TOPIC, "acceptStandardJsonOnly": "true"}, version=0),
    _name_server("route of a topic that is not there", 105, {"topic": UNKNOWN}),
    _name_server("route of TBW102", 105, {"topic": "TBW102"}),
    _name_server("route without a topic", 105),
    _name_server("the cluster", 106),
    _name_server("topics that the name server knows", 206, only=listed),
    _name_server("topics of the cluster", 224, {"cluster": "DefaultCluster"}, only=listed),
    _name_server("topics of a cluster that is not there", 224, {"cluster": "Nowhere"}),
    _name_server("system topics of the name server", 304, only=shape),
    _name_server("put into the name server", 100, {"namespace": "{mark}_space", "key": "k", "value": "v"}),
    _name_server("get of the name server", 101, {"namespace": "{mark}_space", "key": "k"}),
    _name_server("get what is not in the name server", 101, {"namespace": "{mark}_space", "key": "x"}),
    _name_server("list of the name server", 219, {"namespace": "{mark}_space"}),
    _name_server("list of what is not in the name server", 219, {"namespace": "{mark}_nowhere"}),
    _name_server("delete from the name server", 102, {"namespace": "{mark}_space", "key": "k"}),
    _name_server("delete again from the name server", 102, {"namespace": "{mark}_space", "key": "k"}),
    _name_server("make a broker read-only", 205, {"brokerName": "broker-a"}, only=shape),
    _name_server("route to a read-only broker", 105, {"topic": TOPIC}),
    _name_server("make a broker writable", 327, {"brokerName": "broker-a"}, only=shape),
    _name_server("route to a broker that is writable again", 105, {"topic": TOPIC}),
    _name_server("make a broker read-only that is not there", 205, {"brokerName": "nobody"}),
    _name_server("delete a topic from the name server that is not there", 216, {"topic": UNKNOWN}),
]

STATISTICS: list[Step] = [
    *(
        send(
            f"prepare message {n} to look at",
            TOPIC,
            b"look %d" % n,
            {"KEYS": f"{{mark}}_k{n} common", "TAGS": "T", "UNIQ_KEY": f"{{mark}}_U{n}"},
            silent=True,
            keep=f"look{n}",
        )
        for n in range(3)
    ),
    heartbeat("heartbeat of who looks", CLIENT, consumer(GROUP, subscription(TOPIC)), link="looker", silent=True),
    Ask(
        what="prepare an offset of who looks",
        code=15,
        fields=offset_fields(TOPIC, GROUP) | {"commitOffset": 1},
        silent=True,
    ),
    _query("messages by their common key", "common", until=lambda frame: len(frame["body"] or ()) >= 3),
    _query("one message of a common key", "common", maxNum=1),
    _query("message by its key", "{mark}_k1"),
    _query("message by its unique key", "{mark}_U2", _UNIQUE_KEY_QUERY="true", until=found),
    _query("message by a key that nobody has", "{mark}_x"),
    _query("message before all", "common", endTimestamp=1000),
    Ask(what="message by its offset", code=33, fields={"offset": "{look1[at]}", "topic": TOPIC}),
    Ask(what="message by an offset that is none", code=33, fields={"offset": 99999999999, "topic": TOPIC}),
    Ask(what="message by no offset", code=33),
    Ask(
        what="entries of a queue",
        code=321,
        fields={"topic": TOPIC, "queueId": 0, "index": 0, "count": 2, "consumerGroup": GROUP},
    ),
    Ask(
        what="entries of a queue that is not there",
        code=321,
        fields={"topic": TOPIC, "queueId": 9, "index": 0, "count": 2},
    ),
    _queue("end of a queue", 30),
    _queue("end of a queue with nothing in it", 30, 1),
    _queue("end of a queue that is not there", 30, 9),
    _queue("end of a topic that is not there", 30, topic=UNKNOWN),
    _queue("beginning of a queue", 31),
    _queue("beginning of a topic that is not there", 31, topic=UNKNOWN),
    _queue("first store time", 32),
    _queue("first store time of a queue with nothing in it", 32, 1),
    _queue("first store time of a topic that is not there", 32, topic=UNKNOWN),
    _queue("offset by time 0", 29, timestamp=0),
    _queue("offset by a time that comes", 29, timestamp=4000000000000),
    _queue("upper offset by time 0", 29, timestamp=0, boundaryType="upper"),
    _queue("upper offset by a time that comes", 29, timestamp=4000000000000, boundaryType="upper"),
    _queue("upper offset in capitals", 29, timestamp=4000000000000, boundaryType="UPPER"),
    _queue("offset by time in a queue with nothing in it", 29, 1, timestamp=0),
    _queue("offset by time in a topic that is not there", 29, topic=UNKNOWN, timestamp=0),
    _queue("offset by no time", 29),
    Ask(what="where a topic stands", code=202, fields={"topic": TOPIC}),
    Ask(what="where a topic stands that is not there", code=202, fields={"topic": UNKNOWN}),
    Ask(what="where a group stands", code=208, fields={"consumerGroup": GROUP}),
    Ask(what="where a group stands in a topic", code=208, fields={"consumerGroup": GROUP, "topic": TOPIC}),
    Ask(what="where a group stands in another topic", code=208, fields={"consumerGroup": GROUP, "topic": UNKNOWN}),
    Ask(what="where a group stands that is not there", code=208, fields={"consumerGroup": UNKNOWN}),
    Ask(what="where all groups stand", code=317, fields={"isOrder": "false"}, only=shape),
    Ask(what="who consumes a topic", code=300, fields={"topic": TOPIC}),
    Ask(what="who consumes a topic that is not there", code=300, fields={"topic": UNKNOWN}),
    Ask(what="topics of a group", code=343, fields={"group": GROUP}),
    Ask(what="topics of a group that is not there", code=343, fields={"group": UNKNOWN}),
    Ask(what="time span of a group", code=303, fields={"topic": TOPIC, "group": GROUP}),
    Ask(what="time span of a group in a topic that is not there", code=303, fields={"topic": UNKNOWN, "group": GROUP}),
    Ask(what="figures that are not kept", code=315, fields={"statsName": "NONE", "statsKey": "none"}),
    Ask(what="all producers", code=328, only=listed),
]

SETTINGS: list[Step] = [
    Ask(
        what="make a group",
        code=200,
        body={"groupName": "{mark}_made_group", "consumeEnable": True, "retryQueueNums": 2, "retryMaxTimes": 3},
    ),
    Ask(what="make a group with a bad name", code=200, body={"groupName": "bad name"}),
    Ask(what="a group that was made", code=352, fields={"group": "{mark}_made_group"}),
    Ask(what="all groups", code=201, fields={"groupSeq": 0, "maxGroupNum": 10000}, only=listed),
    Ask(what="make groups", code=225, body={"groupConfigList": [{"groupName": "{mark}_made_group_2"}]}),
    Ask(what="delete a group", code=207, fields={"groupName": "{mark}_made_group", "cleanOffset": "true"}),
    Ask(what="delete a group again", code=207, fields={"groupName": "{mark}_made_group", "cleanOffset": "true"}),
    Ask(what="a group that was deleted", code=352, fields={"group": "{mark}_made_group"}),
    Ask(
        what="clone offsets",
        code=314,
        fields={"srcGroup": GROUP, "destGroup": "{mark}_clone", "topic": TOPIC, "offline": "true"},
    ),
    Ask(
        what="clone all offsets",
        code=314,
        fields={"srcGroup": GROUP, "destGroup": "{mark}_clone_2", "offline": "true"},
    ),
    Ask(
        what="offset that was cloned with all",
        code=14,
        fields=offset_fields(TOPIC, "{mark}_clone_2") | {"setZeroIfNotFound": "false"},
    ),
    Ask(
        what="offset that was cloned",
        code=14,
        fields=offset_fields(TOPIC, "{mark}_clone") | {"setZeroIfNotFound": "false"},
    ),
    Ask(what="forbid a group", code=353, fields={"group": GROUP, "topic": TOPIC, "readable": "false"}),
    Ask(what="allow a group", code=353, fields={"group": GROUP, "topic": TOPIC, "readable": "true"}),
    Ask(
        what="settings of the broker",
        code=26,
        only=only("brokerName", "brokerClusterName", "brokerPermission", "autoCreateTopicEnable", "maxMessageSize"),
    ),
    Ask(what="change a setting", code=25, body="defaultTopicQueueNums=8\n"),
    Ask(what="change a setting that is not there", code=25, body="noSuchSetting=8\n"),
    Ask(what="change no setting", code=25, body=b""),
    Ask(
        what="the broker about itself",
        code=28,
        only=only("brokerVersionDesc", "brokerVersion", "bootTimestamp", "brokerActive"),
    ),
    Ask(what="what clusterList reads of a broker", code=28, only=present(*READ_BY_CLUSTER_LIST)),
    _name_server("settings of the name server", 319, only=only("orderMessageEnable")),
    Ask(what="prepare a read-only broker", code=25, body="brokerPermission=4\n", silent=True),
    send("send to a read-only broker", TOPIC),
    Ask(what="prepare a write-only broker", code=25, body="brokerPermission=2\n", silent=True),
    Ask(
        what="pull from a write-only broker",
        code=11,
        fields={
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 1,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
        },
    ),
    Ask(what="prepare a broker for all", code=25, body="brokerPermission=6\n", silent=True),
    _static("make a static topic", 7),
    _static("make a static topic with a smaller epoch", 6),
    _static("make a static topic with a bad name", 7, topic="bad name"),
    _static("make a static topic with a smaller epoch by force", 6, force="true"),
    Ask(what="a static topic with its mapping", code=351, fields={"topic": STATIC, "lo": "true"}),
    Ask(what="a static topic without its mapping", code=351, fields={"topic": STATIC}),
    Ask(what="a topic that is not static with its mapping", code=351, fields={"topic": TOPIC, "lo": "true"}),
    Ask(what="the route of a static topic", code=105, fields={"topic": STATIC}, to=NAME_SERVER, until=_mapped),
    Ask(what="delete a static topic", code=215, fields={"topic": STATIC}),
    Ask(what="delete a topic", code=215, fields={"topic": "{mark}_listed"}),
    Ask(what="delete a topic again", code=215, fields={"topic": "{mark}_listed"}),
    Ask(what="delete a topic of the system", code=215, fields={"topic": "SCHEDULE_TOPIC_XXXX"}),
    Ask(what="delete no topic", code=215, fields={"topic": ""}),
    Ask(what="a topic that was deleted", code=351, fields={"topic": "{mark}_listed"}),
    _name_server("delete a topic from the name server", 216, {"topic": "{mark}_listed"}),
]

# unknown codes, and requests with unusual headers
UNKNOWN_CODES: list[Step] = [
    Ask(what="a request that no broker knows", code=9999),
    Ask(what="a request with a binary header", code=30, fields={"topic": TOPIC, "queueId": 0}, binary=True),
    Ask(what="a request in an unknown language", code=30, fields={"topic": TOPIC, "queueId": 0}, language="KLINGON"),
    Ask(what="a one-way request that no broker knows", code=9999, oneway=True, link="unknown"),
    _name_server("a request that no name server knows", 9999),
    _name_server("a broker's request to the name server", 11),
]
# requests that the embedded broker does not support
LATER: list[Step] = [
    Ask(
        what="not here: the end of a transaction",
        code=37,
        fields={
            "producerGroup": "{mark}_producer",
            "tranStateTableOffset": 0,
            "commitLogOffset": 0,
            "commitOrRollback": 8,
            "msgId": "{look0[msgId]}",
        },
    ),
    Ask(what="not here: users", code=3005, fields={"filter": ""}),
    Ask(
        what="not here: another broker's registration",
        code=901,
        fields={"clusterName": "DefaultCluster", "brokerName": "broker-a"},
        to=NAME_SERVER,
    ),
]
ADMINISTRATION: list[Step] = [*TOPICS, *STATISTICS, *SETTINGS, *UNKNOWN_CODES, *LATER]
