"""Builders of the requests that the script uses most."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from tests.nightly.comparison.traffic import Ask, Frame

CONSUMER, RETRY = "{mark}_group", "%RETRY%{mark}_group"
SUSPEND, COMMIT, WITH_SUBSCRIPTION = 2, 1, 4  # bits of a pull's sysFlag
LETTERS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}


def found(frame: Frame) -> bool:
    """Return whether a request was successful."""
    return bool(frame["code"] == 0)


def topic_fields(topic: str, queues: int = 1, **changes: object) -> dict[str, object]:
    """Return the fields of request 17."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        **changes,
    }


def make_topic(topic: str, queues: int = 1, **changes: object) -> Ask:
    """Prepare a topic for other steps."""
    return Ask(what=f"prepare {topic}", code=17, fields=topic_fields(topic, queues, **changes), silent=True)


def send_fields(topic: str, properties: Mapping[str, str] | str = "", **changes: object) -> dict[str, object]:
    """Return the fields of request 10. Properties that are a mapping get a unique key."""
    return {
        "producerGroup": "{mark}_producer",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": "{now}",
        "flag": 0,
        "properties": properties
        if isinstance(properties, str)
        else properties_text({"UNIQ_KEY": "unique", **properties}),
        "reconsumeTimes": 0,
        "unitMode": "false",
        "batch": "false",
        "maxReconsumeTimes": 16,
        **changes,
    }


def by_letters(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of request 10 with the short names of requests 310 and 320."""
    return {LETTERS[name]: value for name, value in fields.items()}


def send(
    what: str,
    topic: str,
    body: bytes = b"body",
    properties: Mapping[str, str] | str = "UNIQ_KEY\x01unique\x02",
    **changes: Any,
) -> Ask:
    """Send a message by request 310. `keep` is the name of its response in later steps."""
    ask = {name: changes.pop(name) for name in ("keep", "silent", "link", "oneway", "aside") if name in changes}
    return Ask(what=what, code=310, fields=by_letters(send_fields(topic, properties, **changes)), body=body, **ask)


def properties_text(values: Mapping[str, str]) -> str:
    """Encode properties."""
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())


def batch_body(*messages: tuple[bytes, Mapping[str, str]]) -> bytes:
    """Encode messages as a batch. Magic and CRC are 0, because the broker computes them."""
    parts = []
    for body, values in messages:
        properties = properties_text(values).encode()
        head = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body))
        parts.append(head + body + struct.pack(">h", len(properties)) + properties)
    return b"".join(parts)


def pull_fields(topic: str, offset: int = 0, **changes: object) -> dict[str, object]:
    """Return the fields of request 11, for a pull with its own subscription that is not held."""
    return {
        "consumerGroup": CONSUMER,
        "topic": topic,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": WITH_SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
        "maxMsgBytes": 262144,
        **changes,
    }


def pull(what: str, topic: str, offset: int = 0, **changes: Any) -> Ask:
    """Pull by request 11."""
    ask = {name: changes.pop(name) for name in ("link", "answered", "until", "code") if name in changes}
    return Ask(what=what, code=ask.pop("code", 11), fields=pull_fields(topic, offset, **changes), **ask)


def subscription(
    topic: str, expression: str = "*", *, kind: str = "TAG", version: object = "{now}"
) -> dict[str, object]:
    """Return a subscription of a heartbeat."""
    tags = [] if expression == "*" or kind != "TAG" else [tag.strip() for tag in expression.split("||")]
    return {
        "classFilterMode": False,
        "topic": topic,
        "subString": expression,
        "tagsSet": tags,
        "codeSet": [_java_hash(tag) for tag in tags],
        "subVersion": version,
        "expressionType": kind,
    }


def consumer(group: str, *subscriptions: Mapping[str, object], **changes: object) -> dict[str, object]:
    """Return a consumer of a heartbeat."""
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": list(subscriptions),
        "unitMode": False,
        **changes,
    }


def heartbeat(
    what: str, client: str, *consumers: Mapping[str, object], producers: tuple[str, ...] = (), **changes: Any
) -> Ask:
    """Send request 34. `changes` are for its body, except for `link`, `silent` and `language`."""
    ask = {name: changes.pop(name) for name in ("link", "silent", "language") if name in changes}
    body = {
        "clientID": client,
        "producerDataSet": [{"groupName": name} for name in producers],
        "consumerDataSet": list(consumers),
        "heartbeatFingerprint": 0,
        "withoutSub": False,
        **changes,
    }
    return Ask(what=what, code=34, body=body, **ask)


def queue(topic: str, queue_id: int = 0) -> dict[str, object]:
    """Return a MessageQueue as JSON."""
    return {"topic": topic, "brokerName": "broker-a", "queueId": queue_id}


def offset_fields(topic: str, group: str = CONSUMER, queue_id: int = 0, **changes: object) -> dict[str, object]:
    """Return the fields of requests 14 and 15."""
    return {"consumerGroup": group, "topic": topic, "queueId": queue_id, **changes}


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
