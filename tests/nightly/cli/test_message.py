"""`rmqd message`: single messages by id and by key, compared with mqadmin."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from rmqd.wire.topics import dlq_topic
from tests.cli.command import Ended, rmqd
from tests.rocketmq import RealCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.process


def sent(cluster: RealCluster, topic: str, body: bytes, *options: str) -> dict[str, Any]:
    """Send a message with `rmqd send`, and return its result."""
    ended = rmqd("send", topic, "-", *options, "-n", cluster.nameserver, "-o", "json", stdin=body)
    assert ended.code == 0, ended.err
    said = json.loads(ended.out)
    one = said[0] if isinstance(said, list) else said
    assert isinstance(one, dict)
    return one


def found(cluster: RealCluster, *question: str) -> list[dict[str, Any]]:
    """The messages that the command finds, once the broker has indexed them."""

    def ask() -> Ended | None:
        ended = rmqd("message", *question, "-n", cluster.nameserver, "-o", "json")
        return ended if ended.code == 0 else None

    messages = wait_until(ask, "the message is indexed").json()
    assert isinstance(messages, list)
    return messages


def test_a_message_is_found_by_either_id(rocketmq: RealCluster, topic: str) -> None:
    """The fields are the same as in mqadmin."""
    place = sent(rocketmq, topic, "für k1".encode(), "--keys", "k1", "--tags", "a", "--property", "p=v")
    by_unique, by_topic, by_offset = (
        found(rocketmq, "get", *question)
        for question in (
            [place["msg_id"]],
            [place["msg_id"], "--topic", topic],
            [place["offset_msg_id"]],
        )
    )
    assert by_unique == by_topic == by_offset
    (one,) = by_unique
    assert (one["topic"], one["broker"], one["queue"], one["offset"]) == (
        topic, place["broker"], place["queue"], place["offset"],
    )  # fmt: skip
    assert (one["body"], one["keys"], one["tags"], one["properties"]["p"]) == ("für k1", "k1", "a", "v")
    said = rocketmq.admin("queryMsgByUniqueKey", "-t", topic, "-i", one["msg_id"])
    for name, value in (("Queue ID", one["queue"]), ("Queue Offset", one["offset"]), ("Store Host", one["store_host"])):
        assert re.search(rf"{name}: +{re.escape(str(value))}$", said, re.MULTILINE), said
    lines = rmqd("message", "get", place["msg_id"], "-n", rocketmq.nameserver)
    assert f"place:       {topic}, broker-a, queue {one['queue']}, offset {one['offset']}\n" in lines.out
    assert lines.out.endswith("\nfür k1\n")


def test_messages_are_found_by_key(rocketmq: RealCluster, topic: str) -> None:
    """A message may have several keys. A body that is not text is printed in base64."""
    sent(rocketmq, topic, b"first", "--keys", "k1 k2")
    sent(rocketmq, topic, b"\xff\x00", "--keys", "k2")
    sent(rocketmq, topic, b"other", "--keys", "k3")
    wait_until(lambda: len(found(rocketmq, "query", topic, "k2")) == 2, "both are indexed")
    first, second = found(rocketmq, "query", topic, "k2")
    assert (first["body"], base64.b64decode(second["body_base64"])) == ("first", b"\xff\x00")
    said = rocketmq.admin("queryMsgByKey", "-t", topic, "-k", "k2")
    assert first["msg_id"] in said
    assert second["msg_id"] in said
    table = rmqd("message", "query", topic, "k2", "-n", rocketmq.nameserver)
    assert [line.split()[-1] for line in table.out.splitlines()[1:]] == ["first", "UTF-8)"]
    nothing = rmqd("message", "query", topic, "k4", "-n", rocketmq.nameserver)
    assert (nothing.code, nothing.out) == (1, "")
    assert f"no broker has a message of {topic} with the key k4" in nothing.err


def test_the_dead_letter_of_a_message_is_found_too(rocketmq: RealCluster, topic: str, group: str) -> None:
    place = sent(rocketmq, topic, b"poison")
    dead = rocketmq.create_topic(dlq_topic(group), 1)
    sent(rocketmq, dead, b"poison", "--property", f"UNIQ_KEY={place['msg_id']}")
    wait_until(lambda: len(found(rocketmq, "get", place["msg_id"])) == 2, "both are indexed")
    assert {one["topic"] for one in found(rocketmq, "get", place["msg_id"])} == {topic, dead}


def test_raw_prints_the_body_unchanged(rocketmq: RealCluster, topic: str) -> None:
    place = sent(rocketmq, topic, b"one\ntwo")
    found(rocketmq, "get", place["msg_id"])
    raw = rmqd("message", "get", place["msg_id"], "--raw", "-n", rocketmq.nameserver)
    assert (raw.code, raw.out) == (0, "one\ntwo")


def test_an_unknown_id_is_an_error(rocketmq: RealCluster) -> None:
    for unknown in ("7F000001DA3C5F8D4BC40070B2E30001", "no-id"):
        ended = rmqd("message", "get", unknown, "-n", rocketmq.nameserver)
        assert (ended.code, ended.out) == (1, "")
        assert f"no broker has a message with the id {unknown}" in ended.err
