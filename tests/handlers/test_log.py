"""`log`: a line per message."""

from __future__ import annotations

import logging

import pytest

from rmqd_handlers.log import Log
from tests.handlers.messages import make_batch, make_message
from tests.handlers.options import not_refused


def handled(caplog: pytest.LogCaptureFixture, *bodies: bytes, **options: object) -> list[logging.LogRecord]:
    with caplog.at_level(logging.DEBUG):
        messages = [make_message(body, queue_offset=offset) for offset, body in enumerate(bodies, start=7)]
        Log(Log.Options.model_validate(options)).handle(make_batch(*messages))
    return caplog.records


def test_each_message_is_one_line_without_its_body(caplog: pytest.LogCaptureFixture) -> None:
    records = handled(caplog, b"secret 1", b"secret 2")

    assert [record.getMessage() for record in records] == ["message.handled"] * 2
    assert [vars(record)["offset"] for record in records] == [7, 8]
    assert {record.levelname for record in records} == {"INFO"}
    assert "secret" not in str([vars(record) for record in records])


def test_the_body_is_written_on_request_up_to_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = handled(caplog, b"0123456789", body="always", body_limit="4B", level="warning")

    assert (vars(record)["body"], vars(record)["body_bytes"], record.levelname) == ("0123", 10, "WARNING")


def test_a_body_that_is_not_text_is_written_escaped(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = handled(caplog, b"\xffok", body="always")

    assert vars(record)["body"] == "\\xffok"


def test_wrong_options_are_refused() -> None:
    wrong: list[dict[str, object]] = [{"level": "loud"}, {"body": "sometimes"}, {"body_limit": 5}, {"colour": "red"}]

    assert not_refused(Log.Options, wrong) == []
