"""Members, their notifications, offsets and locks, and messages that they send back."""

from __future__ import annotations

from tests.nightly.comparison.script.shapes import (
    consumer,
    found,
    heartbeat,
    make_topic,
    offset_fields,
    pull,
    queue,
    send,
    subscription,
)
from tests.nightly.comparison.traffic import Ask, Pushed, Quiet, Step

TOPIC, GROUP, OTHER = "{mark}_shared", "{mark}_members", "{mark}_nobody"
RETRY = "%RETRY%" + GROUP
ONE, TWO = "127.0.0.1@{mark}_one", "127.0.0.1@{mark}_two"
MEMBER = consumer(GROUP, subscription(TOPIC, "A || B"), subscription(RETRY))
CHANGED = consumer(GROUP, subscription(TOPIC, "C", version=4000000000000), subscription(RETRY))
WIDER = consumer(
    GROUP, subscription(TOPIC, "C", version=4000000000000), subscription("{mark}_more"), subscription(RETRY)
)


def _list(what: str, group: str = GROUP) -> Ask:
    return Ask(what=what, code=38, fields={"consumerGroup": group}, link="admin")


def _connection(what: str, group: str = GROUP) -> Ask:
    return Ask(what=what, code=203, fields={"consumerGroup": group}, link="admin")


def _checked(what: str, expression: str, kind: str) -> Ask:
    body = {"clientId": ONE, "group": GROUP, "subscriptionData": subscription(TOPIC, expression, kind=kind)}
    return Ask(what=what, code=46, body=body, link="one")


def _get_offset(what: str, topic: str = TOPIC, **changes: object) -> Ask:
    return Ask(what=what, code=14, fields=offset_fields(topic, GROUP) | changes, link="one")


def _commit(what: str, offset: object, topic: str = TOPIC, **changes: object) -> Ask:
    return Ask(what=what, code=15, fields=offset_fields(topic, GROUP) | {"commitOffset": offset} | changes, link="one")


def _lock(what: str, client: str, *queues: int, code: int = 41, **changes: object) -> Ask:
    body = {
        "consumerGroup": GROUP,
        "clientId": client,
        "onlyThisBroker": False,
        "mqSet": [queue(TOPIC, number) for number in queues],
        **changes,
    }
    return Ask(what=what, code=code, body=body, link="one")


def _back(what: str, message: str, level: int, **changes: object) -> Ask:
    fields = {"offset": message, "group": GROUP, "delayLevel": level, "originTopic": TOPIC, "unitMode": "false"}
    return Ask(what=what, code=36, fields=fields | changes, link="one")


MEMBERS: list[Step] = [
    make_topic(TOPIC, 4),
    _list("members of a group that nobody knows"),
    _connection("connections of a group that nobody knows"),
    heartbeat("first heartbeat of one", ONE, MEMBER, producers=("{mark}_producers",), link="one"),
    Pushed(what="one is told of itself", code=40, link="one"),
    heartbeat("second heartbeat of one", ONE, MEMBER, producers=("{mark}_producers",), link="one"),
    Quiet(what="nobody is told of a second heartbeat", link="one"),
    heartbeat("heartbeat of two", TWO, MEMBER, link="two", language="PYTHON"),
    Pushed(what="one is told of two", code=40, link="one"),
    Pushed(what="two is told of itself", code=40, link="two"),
    _list("members of the group"),
    _connection("connections of the group"),
    heartbeat("heartbeat with another expression", ONE, CHANGED, link="one"),
    Quiet(what="nobody is told of another expression", link="one"),
    _connection("connections after another expression"),
    heartbeat("heartbeat with another topic", ONE, WIDER, link="one"),
    Pushed(what="two is told of another topic", code=40, link="two"),
    heartbeat("heartbeat of the second kind", ONE, WIDER, link="one", heartbeatFingerprint=77),
    heartbeat("heartbeat of the second kind again", ONE, WIDER, link="one", heartbeatFingerprint=77),
    heartbeat("heartbeat without subscriptions", ONE, WIDER, link="one", heartbeatFingerprint=77, withoutSub=True),
    heartbeat("heartbeat of a group that cannot be", ONE, consumer("bad name", subscription(TOPIC)), link="odd"),
    heartbeat("heartbeat without a client id", "", consumer(OTHER, subscription(TOPIC)), link="odd"),
    Ask(what="heartbeat without a body", code=34, link="odd"),
    Ask(what="heartbeat that is no JSON", code=34, body=b"nonsense", link="odd"),
    Ask(what="producers", code=204, fields={"producerGroup": "{mark}_producers"}, link="admin"),
    Ask(what="producers that nobody knows", code=204, fields={"producerGroup": OTHER}, link="admin"),
    Ask(what="subscription of the group", code=345, fields={"group": GROUP, "topic": TOPIC}, link="admin"),
    Ask(what="subscription to another topic", code=345, fields={"group": GROUP, "topic": OTHER}, link="admin"),
    Ask(what="settings of the group", code=352, fields={"group": GROUP}, link="admin"),
    Ask(what="settings of a group that nobody knows", code=352, fields={"group": OTHER}, link="admin"),
    Ask(what="the group's retry topic", code=351, fields={"topic": RETRY}, link="admin"),
    _checked("check of a tag expression", "A || B", "TAG"),
    _checked("check of a condition", "price > 3 AND TAGS IS NOT NULL", "SQL92"),
    _checked("check of a condition that does not parse", "price > > 3", "SQL92"),
    Ask(what="check without a body", code=46, link="one"),
    Ask(what="leave of two", code=35, fields={"clientID": TWO, "consumerGroup": GROUP}, link="two"),
    Pushed(what="one is told that two left", code=40, link="one"),
    _list("members after two left"),
    Ask(what="leave of nobody", code=35, fields={"clientID": TWO, "consumerGroup": OTHER}, link="two"),
    Ask(what="leave of a producer", code=35, fields={"clientID": ONE, "producerGroup": "{mark}_producers"}, link="one"),
    Ask(what="leave without a client id", code=35, fields={"consumerGroup": GROUP}, link="two"),
]

OFFSETS: list[Step] = [
    send(
        "prepare a message of the group",
        TOPIC,
        b"to be sent back",
        {"TAGS": "C", "KEYS": "back"},
        keep="back",
        silent=True,
    ),
    pull("pull the message of the group", TOPIC, consumerGroup=GROUP, until=found),
    _get_offset("offset that nobody committed"),
    _get_offset("offset that nobody committed, or zero", setZeroIfNotFound="true"),
    _get_offset("offset that nobody committed, and no zero", setZeroIfNotFound="false"),
    _get_offset("offset of a queue with nothing in it", queueId=3),
    _get_offset("offset of a topic that is not there", "{mark}_unknown"),
    _get_offset("offset of a queue that is not there", queueId=8),
    _get_offset("offset of a group that nobody knows", consumerGroup=OTHER, setZeroIfNotFound="false"),
    _commit("commit", 1),
    _get_offset("offset after a commit"),
    _commit("commit below", 0),
    _get_offset("offset after a commit below"),
    _commit("commit above the end", 1000),
    _get_offset("offset after a commit above the end"),
    _commit("commit below zero", -5),
    _get_offset("offset after a commit below zero"),
    _commit("commit again", 0),
    _commit("commit to a topic that is not there", 1, "{mark}_unknown"),
    _commit("commit to a queue that is not there", 1, queueId=8),
    _commit("commit to a negative queue", 1, queueId=-1),
    _commit("commit of a group that cannot be", 1, consumerGroup="bad name"),
    _commit("commit of no number", "x"),
    Ask(what="commit without an offset", code=15, fields=offset_fields(TOPIC, GROUP), link="one"),
    Ask(
        what="commit one-way",
        code=15,
        fields=offset_fields(TOPIC, GROUP) | {"commitOffset": 1},
        link="one",
        oneway=True,
    ),
    Quiet(what="nothing answers a one-way commit", link="one"),
    _get_offset("offset after a one-way commit"),
]

LOCKS: list[Step] = [
    _lock("lock by one", ONE, 0, 1),
    _lock("lock by two", TWO, 1, 2),
    _lock("lock by one again", ONE, 0, 1, 2),
    _lock("lock on this broker alone", TWO, 3, onlyThisBroker=True),
    _lock("lock of nothing", ONE),
    _lock("lock of a topic that is not there", ONE, mqSet=[queue("{mark}_unknown")]),
    send(
        "send a retry while queues are locked", RETRY, b"locked", {"RETRY_TOPIC": TOPIC}, reconsumeTimes=1, link="one"
    ),
    _lock("unlock by who has no lock", TWO, 0, code=42),
    _lock("lock after an unlock by who has none", TWO, 0),
    _lock("unlock", ONE, 0, 1, code=42),
    _lock("lock after an unlock", TWO, 0, 1),
    _lock("unlock by two", TWO, 0, 1, 2, 3, code=42),
    Ask(what="lock without a body", code=41, link="one"),
    pull("pull what was dead-lettered for a lock", "%DLQ%" + GROUP, until=found),
]

SENT_BACK: list[Step] = [
    _back("send back with level 1", "{back[at]}", 1, originMsgId="{back[msgId]}"),
    _back("send back with the broker's level", "{back[at]}", 0, originMsgId="{back[msgId]}"),
    _back("send back to the dead letters", "{back[at]}", -1, originMsgId="{back[msgId]}"),
    _back("send back at the limit", "{back[at]}", 1, maxReconsumeTimes=0),
    _back("send back a message that is not there", "99999999999", 1),
    _back("send back as a group that cannot be", "{back[at]}", 1, group="bad name"),
    Ask(what="send back without an offset", code=36, fields={"group": GROUP, "delayLevel": 1}, link="one"),
    Ask(
        what="prepare a group without retry queues",
        code=200,
        body={"groupName": "{mark}_noretry", "retryQueueNums": 0},
        silent=True,
    ),
    _back("send back of a group without retry queues", "{back[at]}", 1, group="{mark}_noretry"),
    pull("pull the message that was sent back", RETRY, until=found),
    pull(
        "pull all dead letters of the group",
        "%DLQ%" + GROUP,
        until=lambda frame: len(frame["body"] or ()) >= 3,
    ),
    Ask(what="the topic of the group's dead letters", code=351, fields={"topic": "%DLQ%" + GROUP}),
]
GROUPS: list[Step] = [*MEMBERS, *OFFSETS, *LOCKS, *SENT_BACK]
