"""Operators' requests to groups: resets by the broker, pushed resets, and requests that are passed on to members."""

from __future__ import annotations

from tests.nightly.comparison.script.shapes import (
    consumer,
    heartbeat,
    make_topic,
    offset_fields,
    pull,
    send,
    subscription,
)
from tests.nightly.comparison.traffic import Ask, Pushed, Quiet, Step, Take

TOPIC, GROUP, NOBODY = "{mark}_reset", "{mark}_resetters", "{mark}_absent"
CLIENT = "127.0.0.1@{mark}_resetter"


def _reset(what: str, **changes: object) -> Ask:
    fields = {"group": GROUP, "topic": TOPIC, "timestamp": 0, "isForce": "true", "queueId": -1, "offset": -1}
    ask = {name: changes.pop(name) for name in ("language", "answered") if name in changes}
    given = {name: value for name, value in (fields | changes).items() if value is not None}
    return Ask(what=what, code=222, fields=given, link="operator", **ask)  # type: ignore[arg-type]


def _commit(what: str, offset: int, queue_id: int = 0) -> Ask:
    fields = offset_fields(TOPIC, GROUP, queue_id) | {"commitOffset": offset}
    return Ask(what=what, code=15, fields=fields, link="member")


def _offset(what: str, queue_id: int = 0) -> Ask:
    return Ask(what=what, code=14, fields=offset_fields(TOPIC, GROUP, queue_id), link="member")


def _pull(what: str, offset: int, queue_id: int = 0) -> Ask:
    return pull(what, TOPIC, offset, consumerGroup=GROUP, queueId=queue_id, link="member")


def _setting(what: str, text: str) -> Ask:
    return Ask(what=what, code=25, body=text, link="operator", silent=True)


RESETS: list[Step] = [
    make_topic(TOPIC, 2),
    *(
        send(f"prepare message {n} to be reset", TOPIC, b"%d" % n, silent=True, queueId=n % 2, keep=f"reset{n}")
        for n in range(8)
    ),
    _reset("reset of a group that nobody knows", group=NOBODY),
    heartbeat("heartbeat of who is reset", CLIENT, consumer(GROUP, subscription(TOPIC)), link="member"),
    Pushed(what="who is reset is told of itself", code=40, link="member"),
    _reset("reset of a group without offsets"),
    _pull("pull after a reset without offsets", 2),
    _pull("pull the other queue after a reset without offsets", 2, 1),
    _commit("prepare an offset", 3),
    _commit("prepare the other offset", 3, 1),
    _reset("reset to the beginning"),
    _offset("offset after a reset"),
    _commit("commit while a reset waits", 4),
    _offset("offset after a commit while a reset waits"),
    _pull("pull that meets the reset", 3),
    _pull("pull behind the reset", 0),
    _commit("commit behind the reset", 2),
    _offset("offset behind the reset"),
    _pull("pull of the other queue that meets the reset", 3, 1),
    _reset("reset to now", timestamp=4000000000000),
    _pull("pull that meets the reset to now", 3),
    _pull("pull of the other queue that meets the reset to now", 3, 1),
    _reset("reset to the end", timestamp=-1),
    _pull("pull that meets the reset to the end", 3),
    _pull("pull of the other queue that meets the reset to the end", 3, 1),
    _commit("prepare an offset for a reset without force", 1),
    _reset("reset without force", timestamp=-1, isForce="false"),
    _pull("pull after a reset without force", 1),
    _pull("pull of the other queue after a reset without force", 1, 1),
    _reset("reset of one queue", queueId=1),
    _pull("pull after a reset of one queue", 1),
    _pull("pull of the other queue after a reset of one queue", 1, 1),
    _reset("reset of one queue to its end", queueId=1, timestamp=-1, offset=None),
    _offset("offset after a reset of one queue to its end", 1),
    _pull("pull after a reset of one queue to its end", 1, 1),
    _reset("reset of one queue to an offset", queueId=0, offset=2),
    _pull("pull after a reset to an offset", 1),
    _reset("reset of one queue to an offset behind its end", queueId=0, offset=99),
    _pull("pull after a reset to an offset behind the end", 1),
    _reset("reset of a queue that is not there", queueId=7),
    _reset("reset of a topic that is not there", topic="{mark}_unknown"),
    Ask(what="reset without a group", code=222, fields={"topic": TOPIC}, link="operator"),
    # pushed resets
    _setting("prepare pushed resets", "useServerSideResetOffset=false\n"),
    _commit("prepare an offset to be reset by a push", 3),
    _commit("prepare the other offset to be reset by a push", 3, 1),
    _reset("pushed reset"),
    Pushed(what="a reset is pushed", code=220, link="member"),
    _reset("pushed reset asked by C++", language="CPP"),
    Pushed(what="a reset asked by C++ is pushed", code=220, link="member"),
    _reset("pushed reset without force", timestamp=4000000000000, isForce="false"),
    Pushed(what="a reset without force is pushed", code=220, link="member"),
    _reset("pushed reset of a group that is not there", group=NOBODY),
    _reset("pushed reset of a topic that is not there", topic="{mark}_unknown"),
    _setting("prepare resets by the broker again", "useServerSideResetOffset=true\n"),
]

STATUS = '{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5}}'.replace("{", "{{").replace(
    "}", "}}"
)
PASSED_ON: list[Step] = [
    Ask(
        what="status of members",
        code=223,
        fields={"group": GROUP, "topic": TOPIC},
        link="operator",
        answered=False,
    ),
    Pushed(what="a member is asked for its status", code=221, link="member", answer=STATUS),
    Take(what="answer to: status of members"),
    Ask(
        what="status of a group that is not there", code=223, fields={"group": NOBODY, "topic": TOPIC}, link="operator"
    ),
    Ask(
        what="running info",
        code=307,
        fields={"consumerGroup": GROUP, "clientId": CLIENT, "jstackEnable": "true"},
        link="operator",
        answered=False,
    ),
    Pushed(what="a member is asked for its running info", code=307, link="member", answer={"properties": {"a": "b"}}),
    Take(what="answer to: running info"),
    Ask(
        what="running info that a member refuses",
        code=307,
        fields={"consumerGroup": GROUP, "clientId": CLIENT, "jstackEnable": "false"},
        link="operator",
        answered=False,
    ),
    Pushed(what="a member refuses its running info", code=307, link="member", answer=None, answer_code=1),
    Take(what="answer to: running info that a member refuses"),
    Ask(
        what="running info of a client that is not there",
        code=307,
        fields={"consumerGroup": GROUP, "clientId": "nobody", "jstackEnable": "false"},
        link="operator",
    ),
    Ask(
        what="running info of a group that is not there",
        code=307,
        fields={"consumerGroup": NOBODY, "clientId": "nobody", "jstackEnable": "false"},
        link="operator",
    ),
    Ask(
        what="direct consumption",
        code=309,
        fields={
            "consumerGroup": GROUP,
            "clientId": CLIENT,
            "msgId": "{reset0[msgId]}",
            "brokerName": "broker-a",
            "topic": TOPIC,
        },
        link="operator",
        answered=False,
    ),
    Pushed(
        what="a member is asked to consume a message",
        code=309,
        link="member",
        answer={"autoCommit": True, "consumeResult": "CR_SUCCESS", "order": False, "spentTimeMills": 1},
    ),
    Take(what="answer to: direct consumption"),
    Ask(
        what="direct consumption by nobody",
        code=309,
        fields={"consumerGroup": GROUP, "clientId": "nobody", "msgId": "{reset0[msgId]}", "brokerName": "broker-a"},
        link="operator",
    ),
    Quiet(what="nothing else came to the member", link="member"),
]
OPERATORS: list[Step] = [*RESETS, *PASSED_ON]
