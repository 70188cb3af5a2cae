"""The line of a message that `jsonl` writes and `exec` passes to commands."""

from __future__ import annotations

import json

from rmqd_handlers.message_values import to_json_lines
from tests.handlers.messages import make_message


def test_a_line_holds_the_messages_fields_by_rocketmqs_names() -> None:
    message = make_message(b"hello", keys="k1 k2", tags="paid", queue_offset=42, properties={"colour": "blue"})

    record = json.loads(to_json_lines([message]))

    assert record["body"] == "hello"
    assert (record["keys"], record["tags"], record["properties"]["colour"]) == ("k1 k2", "paid", "blue")
    assert (record["topic"], record["broker_name"], record["queue_id"]) == ("orders", "broker-a", 3)
    assert (record["queue_offset"], record["reconsume_times"]) == (42, 0)
    assert record["born_timestamp"] <= record["store_timestamp"]
    assert record["msg_id"] == message.msg_id
    assert record["born_host"] == message.born_host


def test_a_body_that_is_not_text_has_the_key_body_base64() -> None:
    record = json.loads(to_json_lines([make_message(b"\xff\x00")]))

    assert record["body_base64"] == "/wA="
    assert "body" not in record


def test_a_body_with_line_breaks_stays_on_its_line() -> None:
    lines = to_json_lines([make_message("eins\nzwei\r\u2028drei".encode()), make_message(b"next")]).split(b"\n")

    assert len(lines) == 3
    assert lines[2] == b""
    assert json.loads(lines[0])["body"] == "eins\nzwei\r\u2028drei"
