"""Pulls with every outcome, held pulls, and the limits of a response."""

from __future__ import annotations

from typing import Any

from tests.nightly.comparison.script.shapes import (
    COMMIT,
    CONSUMER,
    SUSPEND,
    WITH_SUBSCRIPTION,
    batch_body,
    by_letters,
    consumer,
    found,
    heartbeat,
    make_topic,
    offset_fields,
    pull,
    send,
    send_fields,
    subscription,
)
from tests.nightly.comparison.traffic import Ask, Quiet, Step, Take

PULLED, EMPTY, CLOSED = "{mark}_pulled", "{mark}_empty", "{mark}_closed"
HELD, EXPIRING = "{mark}_held", "{mark}_expiring"
MANY, LARGE = "{mark}_many", "{mark}_large"
GROUP = "{mark}_pullers"
CLIENT = "127.0.0.1@{mark}_puller"
BY_HEARTBEAT: dict[str, Any] = {"consumerGroup": GROUP, "sysFlag": 0, "link": "puller"}


def _batch(what: str, topic: str, messages: int, body: bytes, properties: dict[str, str]) -> Ask:
    fields = by_letters(send_fields(topic, batch="true"))
    return Ask(what=what, code=320, fields=fields, body=batch_body(*[(body, properties)] * messages), silent=True)


def _group(what: str, **changes: object) -> Ask:
    body = {"groupName": "{mark}_" + what.split()[-1], "consumeEnable": True, "retryQueueNums": 1, **changes}
    return Ask(what=f"prepare {what}", code=200, body=body, silent=True)


PULLING: list[Step] = [
    make_topic(PULLED, 2),
    make_topic(EMPTY),
    make_topic(CLOSED, perm=2),
    make_topic(HELD),
    make_topic(EXPIRING),
    *(
        send(
            f"prepare message {number}",
            PULLED,
            f"message {number}".encode(),
            {"TAGS": "ABC"[number % 3], "KEYS": f"k{number}", "price": str(number), "UNIQ_KEY": f"u{number}"},
            silent=True,
            keep=f"pulled{number}",
        )
        for number in range(9)
    ),
    pull("pull all", PULLED, until=lambda frame: len(frame["body"] or ()) >= 9),
    pull("pull three", PULLED, maxMsgNums=3),
    pull("pull more than a broker gives", PULLED, maxMsgNums=1000),
    pull("pull no message", PULLED, maxMsgNums=0),
    pull("pull from the middle", PULLED, 4),
    pull("pull at the end", PULLED, 9),
    pull("pull one behind the end", PULLED, 10),
    pull("pull far behind the end", PULLED, 1000),
    pull("pull before the beginning", PULLED, -1),
    pull("pull a queue with nothing in it", PULLED, queueId=1),
    pull("pull a queue with nothing in it from 5", PULLED, 5, queueId=1),
    pull("pull a topic with nothing in it", EMPTY),
    pull("pull a topic with nothing in it from 5", EMPTY, 5),
    pull("pull a queue that is not there", PULLED, queueId=2),
    pull("pull a negative queue", PULLED, queueId=-1),
    pull("pull a topic that is not there", "{mark}_unknown"),
    pull("pull a topic that is only written", CLOSED),
    pull("pull as a group that cannot be", PULLED, consumerGroup="bad name"),
    pull("lite pull", PULLED, code=361),
    # filters in the pull request
    pull("pull by one tag", PULLED, subscription="A"),
    pull("pull by two tags", PULLED, subscription="A || C"),
    pull("pull by a tag that nobody has", PULLED, subscription="D"),
    pull("pull two by a tag", PULLED, subscription="B", maxMsgNums=2),
    pull("pull by an empty expression", PULLED, subscription=""),
    pull("pull by SQL92", PULLED, subscription="price > 4 AND TAGS IN ('A', 'B')", expressionType="SQL92"),
    pull("pull by SQL92 that nothing matches", PULLED, subscription="price > 400", expressionType="SQL92"),
    pull("pull by SQL92 that does not parse", PULLED, subscription="price > > 4", expressionType="SQL92"),
    pull("pull by an expression of no known type", PULLED, subscription="a", expressionType="XPATH"),
    # subscriptions in a heartbeat
    pull("pull of a group without a member", PULLED, **BY_HEARTBEAT),
    heartbeat(
        "heartbeat of a puller",
        CLIENT,
        consumer(GROUP, subscription(PULLED, "A||B", version="{now}"), subscription(HELD)),
        link="puller",
    ),
    pull("pull by the heartbeat's tags", PULLED, **BY_HEARTBEAT),
    pull("pull with a newer subscription", PULLED, **BY_HEARTBEAT, subVersion=4102444800000),
    pull("pull a topic that is not subscribed", EMPTY, **BY_HEARTBEAT),
    heartbeat(
        "heartbeat with SQL92",
        CLIENT,
        consumer(GROUP, subscription(PULLED, "price BETWEEN 2 AND 5", kind="SQL92", version=4000000000000)),
        link="puller",
    ),
    pull("pull by the heartbeat's SQL92", PULLED, **BY_HEARTBEAT, subVersion=4000000000000, expressionType="SQL92"),
    pull(
        "pull with newer SQL92 than the heartbeat's",
        PULLED,
        **BY_HEARTBEAT,
        subVersion=4000000000001,
        expressionType="SQL92",
    ),
    # permissions of a group
    _group("closed", consumeEnable=False),
    pull("pull as a group that may not consume", PULLED, consumerGroup="{mark}_closed"),
    _group("clustering", consumeBroadcastEnable=False),
    heartbeat(
        "heartbeat of a broadcasting member",
        "127.0.0.1@{mark}_broadcaster",
        consumer("{mark}_clustering", subscription(PULLED), messageModel="BROADCASTING"),
        link="broadcaster",
    ),
    pull(
        "pull as a group that may not broadcast",
        PULLED,
        consumerGroup="{mark}_clustering",
        sysFlag=0,
        link="broadcaster",
    ),
    # commits in pull requests
    pull("pull and commit", PULLED, 5, sysFlag=WITH_SUBSCRIPTION | COMMIT, commitOffset=5),
    Ask(what="the offset that a pull committed", code=14, fields=offset_fields(PULLED)),
    pull("pull at the end and commit", PULLED, 9, sysFlag=WITH_SUBSCRIPTION | COMMIT, commitOffset=9),
    Ask(what="the offset that a pull at the end committed", code=14, fields=offset_fields(PULLED)),
    # held pulls
    send("prepare a message before a pull whose time runs out", EXPIRING, silent=True),
    pull("pull all before the time runs out", EXPIRING, until=found),
    pull(
        "pull whose time runs out",
        EXPIRING,
        1,
        sysFlag=WITH_SUBSCRIPTION | SUSPEND,
        suspendTimeoutMillis=100,
        answered=False,
        link="expiring",
    ),
    send("prepare a message before a held pull", HELD, silent=True, properties={"TAGS": "A"}),
    pull("pull all before a held pull", HELD, until=found),
    pull(
        "pull that is held",
        HELD,
        1,
        sysFlag=WITH_SUBSCRIPTION | SUSPEND,
        suspendTimeoutMillis=14000,
        subscription="B",
        answered=False,
        link="held",
    ),
    Quiet(what="nothing answers a pull that is held", link="held"),
    send("send what a held pull does not want", HELD, b"not wanted", {"TAGS": "A"}),
    send("send what a held pull waits for", HELD, b"wanted", {"TAGS": "B"}),
    Take(what="answer to: pull that is held"),
    pull("pull that need not be held", HELD, 0, sysFlag=WITH_SUBSCRIPTION | SUSPEND, suspendTimeoutMillis=14000),
    pull("pull behind the end that may be held", HELD, 99, sysFlag=WITH_SUBSCRIPTION | SUSPEND),
    Ask(what="pull without a topic", code=11, fields={"consumerGroup": CONSUMER}),
    Ask(what="pull from an offset that is no number", code=11, fields=pull("", PULLED, queueOffset="x").fields),
]

LIMITS: list[Step] = [
    make_topic(MANY),
    make_topic(LARGE),
    _batch("prepare many messages", MANY, 900, b"small", {"TAGS": "A"}),
    _batch("prepare large messages", LARGE, 4, b"x" * 100_000, {"TAGS": "A"}),
    pull("pull a message that shows that many are there", MANY, 899, until=found),
    pull("pull a message that shows that large ones are there", LARGE, 3, until=found),
    pull("pull as many as there are", MANY, maxMsgNums=1000),
    pull("pull as many large ones as there are", LARGE),
    pull("pull what nobody has among many", MANY, subscription="Z"),
    pull("pull what nobody has among many, and ask for more", MANY, subscription="Z", maxMsgNums=850),
]

WAITED_FOR: list[Step] = [Take(what="answer to: pull whose time runs out")]
