"""`rmqd status`, `pause`, `resume` and `reload` against a daemon in this process, and where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.cli.daemon_commands import status_lines
from rmqd.cli.terminal.daemon_client import find_daemon
from rmqd.errors import ExitCode
from tests.cli.command import Ended
from tests.cli.daemon_here import daemon
from tests.cli.in_process import rmqd
from tests.daemon.daemon_process import write_config
from tests.waiting import eventually


async def ask(*arguments: str | Path) -> Ended:
    """A command, beside the daemon in this process."""
    return await asyncio.to_thread(rmqd, *arguments)


def free_address() -> str:
    """Where nobody listens just now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"127.0.0.1:{sock.getsockname()[1]}"


async def test_an_operator_looks_pauses_resumes_and_reloads(tmp_path: Path) -> None:
    """The address and the token come from the daemon's own configuration."""
    config = write_config(tmp_path, "mailer", listen=free_address())
    config.write_text(config.read_text().replace("{plugin: log}", "{plugin: log, canary: {plugin: log, share: 5%}}"))
    config.write_text(config.read_text().replace('"}', '", token: "${TOKEN:-secret}"}', 1))
    async with daemon(config):

        async def is_running() -> bool:
            return "mailer  running" in (await ask("status", "--config", config)).out

        await eventually(is_running, "it runs")
        assert (await ask("status", "--config", config)).code == ExitCode.OK
        paused = await ask("pause", "mailer", "--config", config)
        assert (paused.code, paused.out) == (ExitCode.OK, "mailer is paused\n")
        document = (await ask("status", "mailer", "--config", config, "-o", "json")).json()
        assert document["groups"][0]["paused"] is True
        part = await ask("pause", "mailer", "--topic", "orders", "--queue", "3", "--config", config)
        assert part.out.startswith("mailer: topic orders, queue 3 is paused; the daemon has no such queue now")
        still = await ask("resume", "mailer", "--topic", "orders", "--config", config)
        assert still.out == "mailer: topic orders is resumed; still paused: the whole group\n"
        await ask("pause", "mailer", "--broker", "broker-a", "--config", config)
        assert "paused: broker broker-a\n" in (await ask("status", "--config", config)).out
        resumed = await ask("resume", "mailer", "--config", config, "-o", "json")
        assert (resumed.json()["result"], resumed.json()["pauses"]) == ("resumed", [])
        reloaded = await ask("reload", "--config", config)
        assert (reloaded.code, reloaded.out) == (
            ExitCode.OK,
            "the configuration was applied (unchanged: mailer)\n",
        )
        changed = await ask("concurrency", "mailer", "7", "--config", config)
        assert (changed.code, changed.out) == (0, "mailer makes up to 7 calls at once, until the next reload\n")
        assert (await ask("status", "--config", config, "-o", "json")).json()["groups"][0]["concurrency"] == 7
        wrong = await ask("concurrency", "mailer", "0", "--config", config)
        assert (wrong.code, "from 1 to 1000, or auto" in wrong.err) == (ExitCode.FAILURE, True)
        assert (await ask("reload", "--config", config)).out.endswith("(updated: mailer)\n")
        line = "  live canary log, 10% by keys: no messages yet, p50 -\n"
        shared = await ask("canary", "mailer", "--share", "10", "--config", config)
        assert shared.out.startswith("the canary of mailer gets 10% of the messages, until the next reload or start")
        assert line in (await ask("status", "--config", config)).out
        assert (await ask("canary", "mailer", "--share", "101%", "--config", config)).err.endswith("such as 1%\n")
        assert "gets no more messages" in (await ask("canary", "mailer", "--stop", "--config", config)).out
        assert "canary log, 0% by keys" in (await ask("status", "--config", config)).out
        assert (await ask("canary", "mailer", "--config", config)).code == ExitCode.USAGE
        promoted = await ask("canary", "mailer", "--promote", "--config", config)
        assert "make it handler.plugin in the configuration" in promoted.out
        assert "canary" not in (await ask("status", "--config", config)).out
        again = await ask("canary", "mailer", "--promote", "--config", config)
        assert (again.code, "has no canary" in again.err) == (ExitCode.FAILURE, True)
        assert (await ask("concurrency", "shipping", "7", "--config", config)).code == ExitCode.FAILURE
        unknown = await ask("pause", "shipping", "--config", config)
        assert unknown.code == ExitCode.FAILURE
        assert "unknown group shipping" in unknown.err
        nothing = await ask("status", "shipping", "--config", config)
        assert nothing.code == ExitCode.FAILURE


async def test_what_a_daemon_refuses_is_told_with_its_words(tmp_path: Path) -> None:
    """A refused reload has the exit code of a bad configuration and every reason; a wrong token is a failure."""
    config = write_config(tmp_path, "mailer")
    config.write_text(config.read_text().replace('"}', '", token: secret}', 1))
    async with daemon(config) as address:
        other = tmp_path / "other.yaml"
        other.write_text("nameserver: a:1\nhttp: {token: wrong}\n")
        refused = await ask("pause", "mailer", "--http", address, "--config", other)
        assert refused.code == ExitCode.FAILURE
        assert "the token is not the configured one" in refused.err
        write_config(tmp_path, "mailer", more="pull_batch_size: many")
        (tmp_path / "token").write_text("secret")
        refused = await ask("reload", "--http", address, "--token-file", tmp_path / "token")
        assert refused.code == ExitCode.CONFIG
        assert "groups.mailer.pull_batch_size" in refused.err
        assert "the old one stays in force" in refused.err


def test_where_no_daemon_runs() -> None:
    """Exit code 69, with the address that was tried."""
    address = free_address()
    for command in (("status",), ("pause", "mailer"), ("resume", "mailer"), ("reload",)):
        ended = rmqd(*command, "--http", address)
        assert (ended.code, ended.out) == (ExitCode.UNAVAILABLE, "")
        assert f"no rmqd answers at http://{address}" in ended.err
    ended = rmqd("top", "--http", address, "-o", "json")
    assert (ended.code, "no rmqd answers" in ended.json()["error"]) == (ExitCode.UNAVAILABLE, True)


class Stranger:
    """Something that is not rmqd, and notes what it is sent."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.requests: list[str] = []
        heard, reply = self.requests, b"HTTP/1.1 %d Answer\r\nContent-Length: %d\r\n" % (status, len(body))
        reply += b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items()) + b"\r\n" + body

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                heard.append(self.request.recv(65536).decode())
                self.request.sendall(reply)

        self.server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@contextlib.contextmanager
def stranger(status: int = 200, body: bytes = b"{}", **headers: str) -> Iterator[Stranger]:
    """One that answers, until the end of the block."""
    one = Stranger(status, headers, body)
    try:
        yield one
    finally:
        one.server.shutdown()
        one.server.server_close()


def secret_config(folder: Path, listen: str = "127.0.0.1:9464") -> Path:
    """A configuration with a token."""
    path = folder / "rmqd.yaml"
    path.write_text(f"nameserver: a:1\nhttp: {{listen: '{listen}', token: secret}}\n")
    return path


def test_the_token_goes_to_no_other_host(tmp_path: Path) -> None:
    """It is for the daemon whose configuration holds it."""
    config = secret_config(tmp_path, "10.0.0.7:9464")
    with stranger() as other:
        ended = rmqd("pause", "mailer", "--http", f"http://127.0.0.1:{other.port}", "--config", config)
    assert "secret" not in "".join(other.requests)
    assert ended.code == ExitCode.UNAVAILABLE


def test_the_token_goes_to_no_other_port_of_a_configuration_that_was_merely_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What listens there may be anybody's."""
    config = secret_config(tmp_path)
    with stranger() as other:
        monkeypatch.setenv("RMQD_CONFIG", str(config))
        rmqd("pause", "mailer", "--http", f"localhost:{other.port}")
    assert other.requests
    assert "secret" not in "".join(other.requests)


def test_the_token_goes_along_no_redirect(tmp_path: Path) -> None:
    """A daemon sends nobody elsewhere."""
    with stranger() as second, stranger(302, Location=f"http://127.0.0.1:{second.port}/") as first:
        address = f"127.0.0.1:{first.port}"
        ended = rmqd("pause", "mailer", "--config", secret_config(tmp_path, address))
    assert "Bearer secret" in first.requests[0]
    assert not second.requests
    assert ended.code == ExitCode.UNAVAILABLE
    assert "is not rmqd: it redirects" in ended.err


def test_a_token_may_be_given(tmp_path: Path) -> None:
    """From a file, as a command line is seen by everybody."""
    (tmp_path / "token").write_text("given\n")
    with stranger() as other:
        rmqd("reload", "--http", f"127.0.0.1:{other.port}", "--token-file", tmp_path / "token")
    assert "Bearer given" in other.requests[0]


def test_what_is_not_rmqd_is_said_to_be_so() -> None:
    """Exit 69, and no traceback."""
    for body in (b'{"hello": 1}', b"[]", b"<html>", b'{"version": 1, "client_id": 2, "groups": [{}]}'):
        with stranger(body=body) as other:
            ended = rmqd("status", "--http", f"127.0.0.1:{other.port}")
        assert ended.code == ExitCode.UNAVAILABLE, body
        assert "not" in ended.err
        assert "rmqd" in ended.err
        assert "Traceback" not in ended.err


def test_what_strangers_chose_does_nothing_to_the_terminal() -> None:
    """A broker's name, and what a handler raised over a message."""
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


def test_an_address_that_is_none_is_refused() -> None:
    """With the expected form."""
    for address in ("ftp://localhost:1", "http://", "localhost:port", "file:///etc/passwd"):
        ended = rmqd("status", "--http", address)
        assert (ended.code, "such as 127.0.0.1:9464" in ended.err) == (ExitCode.CONFIG, True), address


def test_an_address_that_is_listened_on_becomes_one_to_connect_to(tmp_path: Path) -> None:
    """0.0.0.0 is no address to connect to."""
    config = tmp_path / "rmqd.yaml"
    for listen, url in (
        ("0.0.0.0:9464", "http://127.0.0.1:9464"),
        ("[::]:9464", "http://[::1]:9464"),
        ("10.0.0.7:80", "http://10.0.0.7:80"),
    ):
        config.write_text(f"nameserver: a:1\nhttp: {{listen: '{listen}'}}\n")
        assert find_daemon(None, config).url == url


def test_a_stopped_queue_and_a_reason_are_readable() -> None:
    """The table has a line per queue; what is not known is a dash."""
    queue = {
        "topic": "orders", "is_retry": False, "broker": "broker-a", "queue": 3, "state": "stuck", "committed": None,
        "max": 10, "lag": 4, "lag_seconds": 2.25, "cached": 0, "pulled_from": "10.0.0.1:10911", "at_slave": False,
        "worker": 2, "stall": {"cause": "corrupt_message", "evidence": "the message at 7 is torn", "next": "skip it"},
    }  # fmt: skip
    group: dict[str, Any] = {
        "name": "mailer", "message_model": "broadcasting", "engine": "spark",  # which is not both
        "state": "failed", "paused": True, "failure": "boom", "not_ready_reason": None,
    }  # fmt: skip
    group["failing"] = True
    group["per_second"] = {"handled": 2.5, "failed": 2.5, "retried": 2.46, "dead_lettered": 0.04}
    group["last_error"] = {"at": 1.7e9, "error": "KeyError('x')", "topic": "orders", "msg_id": "A1"}
    group["left_out"] = {"late_rows": 3, "lost_messages": 2}
    group["pauses"] = [{"topic": None, "broker": None, "queue": None}]
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
    shown = "mailer  failed, paused, failing, every queue is stuck, broadcasting, on Spark"
    assert lines[:4] == ["rmqd 1  2 workers", "  worker 1 has died", "", shown]
    assert lines[4] == "  boom"
    assert lines[5] == "  handled 2.5/s, failed 2.5/s, retried 2.5/s, dead-lettered 0.0/s"
    assert lines[6] == "  last error: 2023-11-14 22:13:20 UTC, orders, message A1: KeyError('x')"
    assert status_lines(document)[6] != lines[6], "it is red"
    assert lines[7] == "  skipped since the start: 3 late rows, 2 lost messages"
    del lines[5:8]
    assert lines[5] == "  mode_mismatch: others are orderly. Next: part them"
    assert lines[6] == (
        "  orders@broker-a:3, orders (retry)@broker-a:0 stalled: "
        "corrupt_message: the message at 7 is torn. Next: skip it"
    )
    assert lines[7] == "  orders (retry)@broker-a:0 read from the slave 10.0.0.3:10911"
    assert lines[9].split() == ["orders", "broker-a", "3", "stuck", "-", "10", "4", "2.2", "0", "2"]
    assert lines[10].split()[:4] == ["orders", "(retry)", "broker-a", "0"]
