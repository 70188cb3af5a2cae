"""A group in POP mode: one script for a Java consumer and rmqd."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import behaviour
from tests.conformance.attempts import Attempts
from tests.conformance.scripted import both
from tests.rocketmq import RealCluster
from tests.rocketmq.producer import Producer

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(240)]

SCRIPTS = {"good": "ok", "later": "later,ok", "thrown": "throw,ok", "index": "ok"}
FIRST_DELAY_SECONDS = 10
# position and pop handle of a copy, which differ by group; Java's client adds the handle to the message
PLACE = ("queue_id", "queue_offset", "commit_log_offset", "offset_msg_id", "store_size", "POP_CK", "1ST_POP_TIME")


@behaviour(
    "pop",
    (
        "The broker decides whether a group pops a topic (400); popped messages are invisible to others "
        "until they are acknowledged"
    ),
    java="with clientRebalance off; acknowledges message by message",
    rmqd="with consume_mode: pop; acknowledges in batches",
    checked="compared with a Java consumer: every field of each attempt",
    since="5.0.0",
)
@behaviour(
    "pop",
    (
        "A failed message is invisible for 10 s more, then 30 s, a minute and so on, and is redelivered "
        "with its own topic's name"
    ),
    java=("by CHANGE_MESSAGE_INVISIBLETIME; from the pop retry topic, with ORIGIN_GROUP and a higher reconsume time"),
    rmqd="the same",
    checked=("compared with a Java consumer: every field of each attempt, and no second attempt earlier than that"),
    since="5.0.0",
)
async def test_popped_messages_are_handled_as_in_java(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Each message has the same attempts in Java and in rmqd."""
    names = f"{group}_java", f"{group}_rmqd"
    for name in names:
        rocketmq.set_consume_mode(topic, name, "POP")
    with Producer(rocketmq.broker.address, topic, 8) as producer:
        for key, script in SCRIPTS.items():
            properties = {"script": script, "colour": "red", "UNIQ_KEY": f"{topic}.{key}"}
            producer.send(f"body of {key}".encode(), key=key, tags="T", properties=properties)

    async with both(
        rocketmq,
        group,
        tmp_path / "both",
        [topic],
        {"pop": "true"},
        names,
        consume_mode="pop",
        consume_from_where="first_offset",
    ) as sides:
        await sides.handled(len(SCRIPTS) + 2, 90)
        java, rmqd = await sides.stop()

    assert shown(java, names[0]) == shown(rmqd, names[1])
    for attempts in (java, rmqd):
        for key in ("later", "thrown"):
            first, second = sorted(one.at_millis for one in attempts if one.keys == key)
            assert second - first >= FIRST_DELAY_SECONDS * 1000
    assert {one.topic for one in rmqd} == {topic}


def shown(attempts: Attempts, group: str) -> list[dict[str, object]]:
    """Return the comparable fields of every attempt, with GROUP for the group's name."""
    found = []
    for one in sorted(attempts, key=lambda one: (one.keys or "", one.reconsume_times)):
        values = one.without(*PLACE)
        properties = values["properties"]
        assert isinstance(properties, dict)
        found.append({**values, "properties": {name: v.replace(group, "GROUP") for name, v in properties.items()}})
    return found
