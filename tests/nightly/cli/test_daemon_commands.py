"""`rmqd status` and `rmqd pause`: the printed text, and the defence against servers that are not rmqd.

The core of these tests is in tests/cli/test_daemon_commands.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rmqd.cli.daemon_commands import status_lines
from rmqd.errors import ExitCode
from tests.cli.conftest import _as_on_a_machine_without_rmqd
from tests.cli.in_process import rmqd
from tests.cli.test_daemon_commands import secret_config, stranger

__all__ = ["_as_on_a_machine_without_rmqd"]


def test_the_token_of_a_found_configuration_is_not_sent_to_another_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RMQD_CONFIG names the configuration, not `--config`. Any program may listen at the other port."""
    config = secret_config(tmp_path)
    with stranger() as other:
        monkeypatch.setenv("RMQD_CONFIG", str(config))
        rmqd("pause", "mailer", "--http", f"localhost:{other.port}")
    assert other.requests
    assert "secret" not in "".join(other.requests)


def test_the_token_is_not_sent_to_the_target_of_a_redirect(tmp_path: Path) -> None:
    """rmqd's daemon never redirects."""
    with stranger() as second, stranger(302, Location=f"http://127.0.0.1:{second.port}/") as first:
        address = f"127.0.0.1:{first.port}"
        ended = rmqd("pause", "mailer", "--config", secret_config(tmp_path, address))
    assert "Bearer secret" in first.requests[0]
    assert not second.requests
    assert ended.code == ExitCode.UNAVAILABLE
    assert "is not rmqd: it redirects" in ended.err


def test_a_server_that_is_not_rmqd_is_reported() -> None:
    """The exit code is 69, without a traceback."""
    for body in (b'{"hello": 1}', b"[]", b"<html>", b'{"version": 1, "client_id": 2, "groups": [{}]}'):
        with stranger(404 if body == b"<html>" else 200, body=body) as other:
            ended = rmqd("status", "--http", f"127.0.0.1:{other.port}")
        assert ended.code == ExitCode.UNAVAILABLE, body
        assert "is not rmqd" in ended.err or "not an rmqd of this version" in ended.err
        assert "Traceback" not in ended.err


def test_status_escapes_control_characters() -> None:
    """They may come from another server, or from a handler's exception about a message."""
    group = {
        "name": "mailer", "engine": "local", "message_model": "clustering", "state": "failed", "paused": False,
        "failing": False, "failure": "KeyError('\x1b]0;pwned\x07\\u202e\nmailer  running')", "not_ready_reason": None,
        "per_second": {}, "last_error": None, "left_out": None, "pauses": [], "problems": [], "queues": [],
    }  # fmt: skip
    document = {"version": "\x9b31m", "client_id": "one", "groups": [group]}
    with stranger(body=json.dumps(document).encode()) as other:
        ended = rmqd("status", "--http", f"127.0.0.1:{other.port}")
    assert ended.code == ExitCode.OK
    assert not set(ended.out) & set("\x1b\x07\x9b\u202e")
    assert "mailer  running" not in ended.out.splitlines()
    assert r"\x1b]0;pwned\x07" in ended.out


def test_an_invalid_address_is_refused_with_the_expected_form() -> None:
    for address in ("ftp://localhost:1", "http://", "localhost:port", "file:///etc/passwd"):
        ended = rmqd("status", "--http", address)
        assert (ended.code, "such as 127.0.0.1:9464" in ended.err) == (ExitCode.CONFIG, True), address


def test_status_shows_stalled_queues_and_the_reasons_of_problems() -> None:
    """The table has a line for each queue. Unknown values are dashes."""
    queue = {
        "topic": "orders", "is_retry": False, "broker": "broker-a", "queue": 3, "state": "stuck", "committed": None,
        "max": 10, "lag": 4, "lag_seconds": 2.25, "cached": 0, "pulled_from": "10.0.0.1:10911", "at_slave": False,
        "worker": 2, "stall": {"cause": "corrupt_message", "evidence": "the message at 7 is torn", "next": "skip it"},
    }  # fmt: skip
    group: dict[str, Any] = {
        "name": "mailer", "message_model": "broadcasting", "engine": "spark",  # a real group is not both
        "state": "failed", "paused": True, "failure": "boom", "not_ready_reason": None,
    }  # fmt: skip
    group["failing"] = True
    group["per_second"] = {"handled": 2.5, "failed": 2.5, "retried": 2.46, "dead_lettered": 0.04}
    group["last_error"] = {"at": 1.7e9, "error": "KeyError('x')", "topic": "orders", "msg_id": "A1"}
    group["left_out"] = {"late_rows": 3, "lost_messages": 2}
    group["pauses"] = [{"topic": None, "broker": None, "queue": None}]
    group["totals"] = {"deduplicated": 4}
    group["problems"] = [{"cause": "mode_mismatch", "evidence": "others are orderly", "next": "part them"}]
    workers = [{"worker": 1}, {"worker": 2}]
    document = {
        "version": "1",
        "client_id": None,
        "workers": workers,
        "problems": ["worker 1 has died"],
        "groups": [
            {
                **group,
                "queues": [
                    queue,
                    {**queue, "is_retry": True, "queue": 0, "pulled_from": "10.0.0.3:10911", "at_slave": True},
                ],
            }
        ],
    }
    lines = [re.sub(r"\x1b\[\d+m", "", line) for line in status_lines(document)]
    shown = "mailer  failed, paused, failing, every queue is stuck, mode_mismatch, broadcasting, on Spark"
    assert lines[:4] == ["rmqd 1  2 workers", "  worker 1 has died", "", shown]
    assert lines[4] == "  boom"
    assert lines[5] == "  handled 2.5/s, failed 2.5/s, retried 2.5/s, dead-lettered 0.0/s"
    assert lines[6] == "  last error: 2023-11-14 22:13:20 UTC, orders, message A1: KeyError('x')"
    assert status_lines(document)[6] != lines[6], "the last error is red"
    assert lines[7] == "  skipped since the start: 3 late rows, 2 lost messages, 4 repeated messages"
    del lines[5:8]
    assert lines[5] == "  mode_mismatch: others are orderly. Next: part them"
    assert lines[6] == (
        "  orders@broker-a:3, orders (retry)@broker-a:0 stalled: "
        "corrupt_message: the message at 7 is torn. Next: skip it"
    )
    assert lines[7] == "  orders (retry)@broker-a:0 read from the slave 10.0.0.3:10911"
    assert lines[9].split() == ["orders", "broker-a", "3", "stuck", "-", "10", "4", "2.2", "0", "2"]
    assert lines[10].split()[:4] == ["orders", "(retry)", "broker-a", "0"]
