"""Pops, acknowledgements, invisible times and assignments of queues."""

from __future__ import annotations

from typing import Any

from tests.nightly.comparison.script.shapes import (
    consumer,
    found,
    heartbeat,
    make_topic,
    offset_fields,
    send,
    subscription,
)
from tests.nightly.comparison.traffic import Ask, Quiet, Step, Take

POPPED, SPREAD, WRITTEN, RETRIED = "{mark}_popped", "{mark}_spread", "{mark}_written", "{mark}_retried"
RETRY = "%RETRY%{mark}_poppers_{mark}_retried"
TAGGED, AWAITED, IN_ORDER, UNTOUCHED = "{mark}_tagged", "{mark}_awaited", "{mark}_in_order", "{mark}_untouched"
GROUP, CLIENT = "{mark}_poppers", "127.0.0.1@{mark}_popper"
POP, ACK, PEEK, HIDE, NOTIFY, WAITING, ACK_ALL = 200050, 200051, 200052, 200053, 200054, 200055, 200151
ANY = -1
SHORT_MS = 1000


def _pop(what: str, topic: str, **changes: Any) -> Ask:
    """Pop without being held."""
    ask = {name: changes.pop(name) for name in ("link", "answered", "until", "keep") if name in changes}
    fields = {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": ANY,
        "maxMsgNums": 32,
        "invisibleTime": 60000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": "false",
        **changes,
    }
    return Ask(what=what, code=POP, fields=fields, **ask)


def _handle(kept: str, offset: int, start: int = 0, queue_id: int = 0, retry: int = 0) -> str:
    times = " ".join(_of(kept, name) for name in ("popTime", "invisibleTime", "reviveQid"))
    return f"{start} {times} {retry} broker-a {queue_id} {offset}"


def _of(kept: str, name: str) -> str:
    """Return the placeholder for a header field of a kept response."""
    return f"{{{kept}[{name}]}}"


def _one(what: str, code: int, topic: str, offset: int, handle: str, **changes: Any) -> Ask:
    """Acknowledge one popped message."""
    fields = {"consumerGroup": GROUP, "topic": topic, "queueId": 0, "extraInfo": handle, "offset": offset, **changes}
    return Ask(what=what, code=code, fields=fields)


def _hide(
    what: str, topic: str, offset: int, handle: str, keep: str = "", aside: tuple[str, ...] = (), **changes: Any
) -> Ask:
    fields = {"consumerGroup": GROUP, "topic": topic, "queueId": 0, "extraInfo": handle, "offset": offset}
    return Ask(what=what, code=HIDE, fields={**fields, "invisibleTime": 60000, **changes}, keep=keep, aside=aside)


def _ack_all(what: str, *acks: dict[str, object]) -> Ask:
    return Ask(what=what, code=ACK_ALL, body={"brokerName": "broker-a", "acks": list(acks)})


def _bits(kept: str, bits: str, **changes: object) -> dict[str, object]:
    times = {"pt": _of(kept, "popTime"), "it": _of(kept, "invisibleTime"), "rq": _of(kept, "reviveQid")}
    return {"c": GROUP, "t": POPPED, "r": "0", "so": 0, "q": 0, "b": bits, **times, **changes}


def _look(what: str, code: int, topic: str, **changes: Any) -> Ask:
    """Peek, or ask for a notification or for the waiting pops of a topic."""
    ask = {name: changes.pop(name) for name in ("link", "answered", "until", "silent") if name in changes}
    fields = {"consumerGroup": GROUP, "topic": topic, "queueId": ANY}
    if code == PEEK:
        fields |= {"maxMsgNums": 32}
    if code == NOTIFY:
        fields |= {"pollTime": 0, "bornTime": 0}
    return Ask(what=what, code=code, fields={**fields, **changes}, **ask)


def _there(topic: str, count: int) -> Ask:
    """Wait until messages can be popped, which takes a moment after the send."""
    return _look(f"{count} messages of {topic} are there", PEEK, topic, silent=True, consumerGroup="{mark}_onlooker",
                 until=lambda frame: len(frame["body"] or ()) >= count)  # fmt: skip


def _assignment(what: str, topic: str = POPPED, **changes: object) -> Ask:
    body = {"topic": topic, "consumerGroup": GROUP, "clientId": CLIENT, "strategyName": "AVG"}
    return Ask(what=what, code=400, body={**body, "messageModel": "CLUSTERING", **changes})


def _mode(what: str, mode: str, topic: str = POPPED, **changes: object) -> Ask:
    body = {"topic": topic, "consumerGroup": GROUP, "mode": mode, "popShareQueueNum": 0, **changes}
    return Ask(what=what, code=401, body=body)


def _modes_of_this_run(body: Any, mark: str) -> Any:
    return {topic: groups for topic, groups in body["messageRequestModeMap"].items() if topic.startswith(mark)}


ASSIGNMENTS: list[Step] = [
    make_topic(POPPED),
    make_topic(SPREAD, 2),
    _assignment("queues of who is no member"),
    heartbeat(
        "heartbeat of a popper", CLIENT, consumer(GROUP, subscription(POPPED), subscription(SPREAD)), link="popper"
    ),
    _assignment("queues to pull"),
    _assignment("queues to pull in a circle", SPREAD, strategyName="AVG_BY_CIRCLE"),
    _assignment("queues by a strategy that brokers do not know", strategyName="CONSISTENT_HASH"),
    _assignment("queues of a topic that is not there", "{mark}_unknown"),
    _assignment("queues of a broadcasting member", SPREAD, messageModel="BROADCASTING"),
    _assignment("queues of a stranger", clientId="127.0.0.1@stranger"),
    _mode("have a topic popped", "POP"),
    _mode("have another topic popped, and share one queue", "POP", SPREAD, popShareQueueNum=1),
    _mode("have a topic popped that is not there", "POP", "{mark}_unknown"),
    _mode("have a retry topic popped", "POP", f"%RETRY%{GROUP}"),
    _assignment("queues to pop"),
    _assignment("queues to pop and to share", SPREAD),
    _assignment("queues of a group's retries", f"%RETRY%{GROUP}"),
    _mode("have it pulled again", "PULL", SPREAD),
    _assignment("queues to pull again", SPREAD),
    Ask(what="modes of requests", code=402, only=_modes_of_this_run),
]

POPPING: list[Step] = [
    make_topic(WRITTEN, perm=2),
    make_topic(TAGGED),
    make_topic(AWAITED),
    make_topic(UNTOUCHED, 2),
    _pop("pop nothing", POPPED),
    _look("peek nothing", PEEK, POPPED),
    _look("a notification of nothing", NOTIFY, POPPED),
    _pop("pop and wait in vain", POPPED, pollTime=200),
    *(send(f"prepare message {number} to pop", POPPED, b"%d" % number, silent=True) for number in range(9)),
    _there(POPPED, 9),
    _look("peek", PEEK, POPPED, maxMsgNums=2),
    _look("peek a queue", PEEK, POPPED, queueId=0),
    _look("peek a queue that is not there", PEEK, POPPED, queueId=1),
    _look("a notification of something", NOTIFY, POPPED),
    _look("a notification of a queue", NOTIFY, POPPED, queueId=0),
    _look("a notification of a topic that is not there", NOTIFY, "{mark}_unknown"),
    _look("who waits", WAITING, POPPED),
    _look("who waits at a topic that is only written", WAITING, WRITTEN),
    _pop("pop two", POPPED, maxMsgNums=2, keep="two"),
    # until=found, because a broker may answer a pop before it unlocks the queue, and the next pop finds no message
    _pop("pop of a queue", POPPED, queueId=0, maxMsgNums=3, keep="three", until=found),
    _pop("pop more than a broker gives", POPPED, maxMsgNums=33),
    _pop("pop a queue that is not there", POPPED, queueId=1),
    _pop("pop a topic that is not there", "{mark}_unknown"),
    _pop("pop a topic that is only written", WRITTEN),
    _pop("pop as a group that cannot be", POPPED, consumerGroup="bad name"),
    _pop("pop that was too long on its way", POPPED, bornTime=1_700_000_000_000, pollTime=1000),
    _pop("pop by a condition that does not parse", POPPED, expType="SQL92", exp="a > > 1"),
    _pop("pop by an empty expression", POPPED, exp="", maxMsgNums=1, until=found),
    _pop("pop the rest", POPPED, keep="rest", until=found),
    Ask(
        what="the offset of a group that popped",
        code=14,
        fields=offset_fields(POPPED, GROUP),
        until=lambda frame: frame["fields"].get("offset") == "9",
    ),
    Ask(what="where a group that popped is", code=208, fields={"consumerGroup": GROUP, "topic": POPPED}),
    # acknowledgements
    _one("acknowledge", ACK, POPPED, 0, _handle("two", 0)),
    _one("acknowledge once more", ACK, POPPED, 0, _handle("two", 0)),
    _one("acknowledge in a topic that is not there", ACK, "{mark}_unknown", 0, _handle("two", 0)),
    _one("acknowledge in a queue that is not there", ACK, POPPED, 0, _handle("two", 0), queueId=1),
    _one("acknowledge behind the end", ACK, POPPED, 10, _handle("two", 10)),
    _one("acknowledge at the end", ACK, POPPED, 9, _handle("two", 9)),
    _one("acknowledge before the beginning", ACK, POPPED, -1, _handle("two", -1)),
    _one("acknowledge by half a handle", ACK, POPPED, 1, "0 1"),
    _ack_all("acknowledge many", _bits("three", "Bw==", so=2)),
    _ack_all("acknowledge none"),
    _ack_all("acknowledge many behind the end", _bits("rest", "CQAC", so=6)),
    _ack_all("acknowledge many in a topic that is not there", _bits("rest", "AQ==", t="{mark}_unknown")),
    Ask(what="acknowledge nothing", code=ACK_ALL),
    _hide("hide for longer", POPPED, 1, _handle("two", 1), keep="hidden"),
    _one("acknowledge by the new handle", ACK, POPPED, 1, _handle("hidden", 1, start=1)),
    _hide("hide in a topic that is not there", "{mark}_unknown", 1, _handle("two", 1)),
    _hide("hide in a queue that is not there", POPPED, 1, _handle("two", 1), queueId=-1),
    _hide("hide behind the end", POPPED, 9, _handle("two", 9)),
    # filters
    send("prepare a message with tag B", TAGGED, b"B", {"TAGS": "B", "price": "1"}, silent=True),
    send("prepare a message with tag C", TAGGED, b"C", {"TAGS": "C", "price": "2"}, silent=True),
    send("prepare a message with tag D", TAGGED, b"D", {"TAGS": "D", "price": "3"}, silent=True),
    _there(TAGGED, 3),
    _pop("pop by two tags", TAGGED, exp="B || D"),
    _pop("pop by SQL92", TAGGED, consumerGroup="{mark}_sql", expType="SQL92", exp="price > 1"),
    _pop("pop by a tag that nobody has", TAGGED, consumerGroup="{mark}_nobody", exp="Z"),
    Ask(
        what="the offset behind what nobody wants",
        code=14,
        fields=offset_fields(TAGGED, "{mark}_nobody"),
        until=lambda frame: frame["fields"].get("offset") == "3",
    ),
    # start offsets of groups
    send("prepare what a new group finds", UNTOUCHED, b"first", silent=True),
    _there(UNTOUCHED, 1),
    _pop("pop of a new group that begins at the end", UNTOUCHED, initMode=1),
    Ask(what="the offset of an empty queue that was popped", code=14, fields=offset_fields(UNTOUCHED, GROUP, 1)),
    # held pops
    _pop("pop that waits", AWAITED, pollTime=14000, exp="B", answered=False, link="awaiting"),
    Quiet(what="nothing answers a pop that waits", link="awaiting"),
    _look("one waits", WAITING, AWAITED),
    _look("nobody waits at a queue", WAITING, AWAITED, queueId=0),
    send("send what a pop does not wait for", AWAITED, b"not wanted", {"TAGS": "A"}),
    send("send what a pop waits for", AWAITED, b"wanted", {"TAGS": "B"}),
    Take(what="answer to: pop that waits"),
]

IN_TIME: list[Step] = [
    make_topic(RETRIED),
    make_topic(IN_ORDER),
    send("prepare what is not acknowledged", RETRIED, b"again", {"TAGS": "A", "own": "x"}, silent=True),
    _there(RETRIED, 1),
    _pop("pop for a short time", RETRIED, invisibleTime=SHORT_MS),
    *(send(f"prepare message {number} in order", IN_ORDER, f"{number}".encode(), silent=True) for number in range(3)),
    _there(IN_ORDER, 3),
    _pop("pop in order", IN_ORDER, order="true", maxMsgNums=2, invisibleTime=SHORT_MS, keep="ordered"),
    _pop("pop in order what another one has", IN_ORDER, order="true"),
    _look("a notification of what another one has", NOTIFY, IN_ORDER, order="true"),
    _one("acknowledge the first in order", ACK, IN_ORDER, 0, _handle("ordered", 0)),
    _one("acknowledge out of order", ACK, IN_ORDER, 2, _handle("ordered", 2)),
    Ask(what="the offset of orderly pops", code=14, fields=offset_fields(IN_ORDER, GROUP)),
    _pop("pop in order what was not acknowledged", IN_ORDER, order="true", until=found, keep="later"),
    _hide("hide in order", IN_ORDER, 1, _handle("later", 1, start=1), aside=("invisibleTime",)),
    _hide("hide in order what is behind", IN_ORDER, 0, _handle("later", 0, start=1)),
    _one("acknowledge in order", ACK, IN_ORDER, 1, _handle("later", 1, start=1)),
    _one("acknowledge the last in order", ACK, IN_ORDER, 2, _handle("later", 2, start=1)),
    _one("acknowledge in order what is behind", ACK, IN_ORDER, 0, _handle("later", 0, start=1)),
    Ask(what="the offset behind orderly pops", code=14, fields=offset_fields(IN_ORDER, GROUP)),
]

WAITED_FOR: list[Step] = [
    _pop("pop what was not acknowledged", RETRIED, until=found, keep="again"),
    Ask(what="the topic of what was not acknowledged", code=351, fields={"topic": RETRY}),
    Ask(
        what="the offset in what was not acknowledged",
        code=14,
        fields=offset_fields(RETRY, GROUP),
        until=lambda frame: frame["fields"].get("offset") == "1",
    ),
    Ask(what="where a group with retries is", code=208, fields={"consumerGroup": GROUP, "topic": RETRY}),
    _one("acknowledge what came again", ACK, RETRY, 0, _handle("again", 0, retry=1)),
]
