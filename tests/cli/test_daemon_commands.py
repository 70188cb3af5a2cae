"""`rmqd status`, `pause`, `resume` and `reload` against a daemon in this process, and without a daemon."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.cli.terminal.daemon_client import find_daemon
from rmqd.errors import ExitCode
from tests.cli.command import Ended
from tests.cli.daemon_here import daemon
from tests.cli.in_process import rmqd
from tests.daemon.daemon_process import write_config
from tests.waiting import eventually


async def ask(*arguments: str | Path) -> Ended:
    """Run a command in a thread, while the daemon runs in this event loop."""
    return await asyncio.to_thread(rmqd, *arguments)


def free_address() -> str:
    """A local address that is free at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"127.0.0.1:{sock.getsockname()[1]}"


async def test_status_pause_resume_reload_concurrency_and_canary(tmp_path: Path) -> None:
    """The address and the token come from the daemon's own configuration."""
    config = write_config(tmp_path, "mailer", listen=free_address())
    config.write_text(config.read_text().replace("{plugin: log}", "{plugin: log, canary: {plugin: log, share: 5%}}"))
    config.write_text(config.read_text().replace('"}', '", token: "${TOKEN:-secret}"}', 1))
    async with daemon(config):

        async def is_running() -> bool:
            return "mailer  running" in (await ask("status", "--config", config)).out

        await eventually(is_running, "the group runs")
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
        for calls in ("0", "1001", "9" * 5000, "many"):
            wrong = await ask("concurrency", "mailer", calls, "--config", config)
            assert (wrong.code, "from 1 to 1000, or auto" in wrong.err) == (ExitCode.USAGE, True)
        assert (await ask("reload", "--config", config)).out.endswith("(updated: mailer)\n")
        line = "  live canary log, 10% by keys: no messages yet, p50 -\n"
        shared = await ask("canary", "mailer", "--share", "10", "--config", config)
        assert shared.out.startswith("the canary of mailer gets 10% of the messages, until the next reload or start")
        assert line in (await ask("status", "--config", config)).out
        for share in ("101%", "some"):
            wrong = await ask("canary", "mailer", "--share", share, "--config", config)
            assert (wrong.code, wrong.err.endswith("such as 1%\n")) == (ExitCode.USAGE, True)
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


async def test_commands_print_why_the_daemon_refuses(tmp_path: Path) -> None:
    """A refused reload has the exit code of a bad configuration. A wrong token is a failure."""
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


def test_commands_exit_with_69_if_no_daemon_runs() -> None:
    """The error names the address."""
    address = free_address()
    for command in (("status",), ("pause", "mailer"), ("resume", "mailer"), ("reload",)):
        ended = rmqd(*command, "--http", address)
        assert (ended.code, ended.out) == (ExitCode.UNAVAILABLE, "")
        assert f"no rmqd answers at http://{address}" in ended.err
    ended = rmqd("top", "--http", address, "-o", "json")
    assert (ended.code, "no rmqd answers" in ended.json()["error"]) == (ExitCode.UNAVAILABLE, True)


def test_commands_exit_with_69_if_nothing_names_a_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing configuration that is named, or a wrong one, stays an error of the configuration."""
    monkeypatch.setattr("rmqd.config.reading.config_source.DEFAULT_FILES", ("config/rmqd.yaml",))  # not /etc/rmqd
    for line in ("status", "top", "pause g", "resume g", "reload", "restart g", "concurrency g 2", "canary g --stop"):
        ended = rmqd(*line.split(), "-o", "json")
        assert (ended.code, "config/rmqd.yaml" in ended.json()["error"]) == (ExitCode.UNAVAILABLE, True), line
        assert "name one with --config or $RMQD_CONFIG, or the daemon with --http HOST:PORT" in ended.err
    assert rmqd("status", "--config", tmp_path / "none.yaml").code == ExitCode.CONFIG
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "rmqd.yaml").write_text("htp: {}")
    assert rmqd("status").code == ExitCode.CONFIG


class Stranger:
    """A server that is not rmqd. It records its requests."""

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
    """A Stranger that responds until the end of the block."""
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


def test_the_token_is_not_sent_to_another_host(tmp_path: Path) -> None:
    """The token belongs to the daemon of that configuration."""
    config = secret_config(tmp_path, "10.0.0.7:9464")
    with stranger() as other:
        ended = rmqd("pause", "mailer", "--http", f"http://127.0.0.1:{other.port}", "--config", config)
    assert "secret" not in "".join(other.requests)
    assert ended.code == ExitCode.UNAVAILABLE


def test_the_token_is_read_from_token_file(tmp_path: Path) -> None:
    """A command line is visible to all users, so the option names a file."""
    (tmp_path / "token").write_text("given\n")
    with stranger() as other:
        rmqd("reload", "--http", f"127.0.0.1:{other.port}", "--token-file", tmp_path / "token")
    assert "Bearer given" in other.requests[0]


def test_commands_use_loopback_if_the_daemon_listens_on_all_addresses(tmp_path: Path) -> None:
    """0.0.0.0 is a wildcard, not the address of a host."""
    config = tmp_path / "rmqd.yaml"
    for listen, url in (
        ("0.0.0.0:9464", "http://127.0.0.1:9464"),
        ("[::]:9464", "http://[::1]:9464"),
        ("10.0.0.7:80", "http://10.0.0.7:80"),
    ):
        config.write_text(f"nameserver: a:1\nhttp: {{listen: '{listen}'}}\n")
        assert find_daemon(None, config).url == url


def test_only_the_http_settings_are_needed_to_query_the_daemon(tmp_path: Path) -> None:
    config = tmp_path / "rmqd.yaml"
    text = f"nameserver: ${{ABSENT}}\nhttp: {{listen: '{free_address()}', token: 'TOKEN'}}\ngroups: {{}}\n"
    config.write_text(text.replace("TOKEN", "secret"))
    away = rmqd("status", "--config", config)
    assert (away.code, "no rmqd answers" in away.err) == (ExitCode.UNAVAILABLE, True)
    config.write_text(text.replace("TOKEN", "${ABSENT}"))
    wrong = rmqd("status", "--config", config)
    assert (wrong.code, wrong.err.count("ABSENT is not set")) == (ExitCode.CONFIG, 1)
    assert "or ask the running daemon directly: --http HOST:PORT" in wrong.err
