"""The HTTP endpoint over real sockets: access rules, and limits for large and slow requests.

The core of these tests is in tests/daemon/http/test_http.py.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from rmqd.consumer.health.causes import Problem
from rmqd.consumer.pauses import PauseScope
from rmqd.consumer.stats.stats_snapshot import BatchesSnapshot, LastError
from rmqd.daemon.group_history import HistoryRecorder
from rmqd.daemon.groups.group_engine import HostSnapshot
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor
from rmqd.daemon.http import http_server
from rmqd.daemon.http.http_access import AccessPolicy
from rmqd.daemon.http.http_api import HttpApi
from rmqd.daemon.http.http_endpoint import HttpEndpoint, address_of, listen_on
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.histogram import HistogramSnapshot
from tests.config.configs import config
from tests.daemon.daemon_here import daemon_here
from tests.daemon.daemon_process import write_config
from tests.daemon.fakes import FakeEngine, queue_snapshot
from tests.daemon.http.test_http import Served, served
from tests.nightly.daemon.http.test_limits import HALF_BODY, PROBE, UNREAD, connections, raw
from tests.waiting import eventually

__all__ = ["served"]


@pytest.mark.parametrize(
    "header",
    [
        {"X-Forwarded-For": "203.0.113.7"},
        {"x-forwarded-proto": "https"},
        {"Forwarded": "for=203.0.113.7"},
        {"Via": "1.1 proxy"},
        {"X-Real-IP": "203.0.113.7"},
    ],
)
async def test_changes_through_a_local_proxy_require_the_token(served: Served, header: dict[str, str]) -> None:
    """The proxy connects from loopback, but its client may be on another machine."""
    answer = await served.client.post("/api/v1/groups/mailer/pause", headers=header)
    assert answer.status_code == 403
    assert "http.token" in answer.json()["error"]
    assert not served.engine.last("mailer").paused
    served.access = AccessPolicy("secret", frozenset())
    answer = await served.client.post(
        "/api/v1/groups/mailer/pause", headers={**header, "Authorization": "Bearer secret"}
    )
    assert answer.status_code == 200


@pytest.mark.slow
async def test_the_endpoint_retries_if_it_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests that arrive meanwhile are answered then."""
    clock = SystemClock()
    monitor = LoopMonitor(clock)
    host = LocalGroups(config(), FakeEngine(), clock, monitor)
    sock = listen_on("127.0.0.1:0")
    endpoint = HttpEndpoint(sock)
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as client:
        monkeypatch.setitem(sys.modules, "rmqd.daemon.http.http_api", None)  # as if a file of a package were missing
        served = Served(
            host, monitor, FakeEngine(), endpoint.address, client, HistoryRecorder(clock, host.view), config()
        )
        serving = asyncio.create_task(endpoint.serve(served))
        asked = asyncio.create_task(client.get(f"http://{endpoint.address}/livez"))
        await eventually(lambda: "http.failed" in capsys.readouterr().out, "the failure is logged")
        assert not asked.done()
        monkeypatch.undo()
        assert (await asked).status_code == 200
    endpoint.stop()
    await serving
    endpoint.close()


async def test_more_requests_than_connections_are_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 6)
    answers = await asyncio.gather(*(raw(served.address, PROBE) for _ in range(12)))
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)


def test_the_address_of_the_connection_is_a_valid_host_name() -> None:
    """Clients of a daemon that listens on 0.0.0.0 use its addresses."""
    policy = AccessPolicy("", frozenset())
    assert policy.check_names("10.0.0.7:9464", None, "10.0.0.7") is None
    assert policy.check_names("10.0.0.8:9464", None, "10.0.0.7") is not None
    assert policy.check_names(None, None, "10.0.0.7") is not None


async def test_queues_are_rendered_only_for_open_groups(served: Served) -> None:
    """The page must not send hundreds of queues with each update."""
    queues = tuple(queue_snapshot(number) for number in range(30))
    shown = replace(served.engine.last("audit").snapshot(), queues=queues)
    served.engine.last("audit").snapshot = lambda **_: shown  # type: ignore[method-assign]
    for path, is_whole in (("/", False), ("/live", False), ("/?open=audit", True), ("/live?open=audit", True)):
        text = (await served.client.get(path)).text
        assert "group-audit" in text
        assert ("Committed" in text) is is_whole, path


async def test_a_handler_that_always_fails_is_reported_with_rates_and_last_error(served: Served) -> None:
    """The status, the page and the metrics show it, because the lag alone may be 0."""
    error = LastError(1.7e9, "KeyError('<city>')", "orders", "A1")
    failing = Problem("failing_handler", "the handler fails at everything", "mend it")
    (topic,) = served.engine.last("audit").snapshot().topics
    shown = replace(
        served.engine.last("audit").snapshot(),
        topics=(replace(topic, errors=(error,)),),
        problems=(failing,),
        rates={"handled": 3.0, "failed": 3.0, "retried": 2.5, "dead_lettered": 0.5},
        batches=BatchesSnapshot(HistogramSnapshot((), (0,), 0.0), {}, None, lost=2, retired_queues=0, late_rows=3),
    )
    served.engine.last("audit").snapshot = lambda **_: shown  # type: ignore[method-assign]
    (well, group) = (await served.client.get("/api/v1/status")).json()["groups"]
    assert (well["failing"], well["last_error"], well["left_out"]) == (False, None, None)
    assert group["failing"]
    assert group["left_out"] == {"late_rows": 3, "lost_messages": 2}
    assert group["per_second"] == {"handled": 3.0, "failed": 3.0, "retried": 2.5, "dead_lettered": 0.5}
    assert group["last_error"] == {"at": 1.7e9, "error": "KeyError('<city>')", "topic": "orders", "msg_id": "A1"}
    page = (await served.client.get("/")).text
    assert 'class="group bad" id="group-audit"' in page
    for part in ("KeyError(&#39;&lt;city&gt;&#39;)", "2023-11-14 22:13:20 UTC", "message <code>A1</code>", "mend it"):
        assert part in page
    metrics = (await served.client.get("/metrics")).text
    assert 'rmqd_group_problems{cause="failing_handler",engine="local",group="audit"} 1.0' in metrics


def _large_snapshot(served: Served) -> Any:
    shown = replace(served.engine.last("audit").snapshot(), failure="x" * 20_000_000)
    return lambda **_: shown


async def test_a_body_within_the_limit_is_ignored(served: Served) -> None:
    """Clients such as `curl -d ''` send one."""
    assert (await served.client.post("/api/v1/reload", content=b"x" * 60_000)).status_code == 200


@pytest.mark.parametrize("size", [17_000, 60_000])
async def test_a_large_header_is_refused(served: Served, size: int) -> None:
    """The sizes need one read and several reads."""
    answer = await raw(
        served.address, b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nA: " + b"x" * size + b"\r\n\r\n"
    )
    assert answer.split(b"\r\n")[0].split()[1] in (b"400", b"431")


async def test_a_slow_second_header_also_ends_the_connection(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 0.2)
    host, port = served.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.read(1000)).startswith(b"HTTP/1.1 200")
    writer.write(b"GET /livez HTTP/1.1\r\nHo")
    async with asyncio.timeout(2):  # shorter than the keep-alive timeout
        assert await reader.read() == b""
    writer.close()


CHUNKS = b"POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("comes_later", [False, True])
async def test_a_malformed_body_is_refused_once_without_a_reload(
    served: Served, caplog: pytest.LogCaptureFixture, comes_later: bool
) -> None:
    """The body is sent with the header or after it. There is one response and no error in the log."""
    host, _, port = served.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(5):
        if comes_later:
            writer.write(CHUNKS + b"Expect: 100-continue\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"no size\r\n")
        else:
            writer.write(CHUNKS + b"\r\nno size\r\n")
        answer = await reader.read()
    writer.close()
    assert [line.split()[1] for line in answer.split(b"\r\n") if line.startswith(b"HTTP/")] == [b"400"]
    assert served.reloads == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_malformed_body_of_a_head_request_is_refused_without_a_text(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """A response to HEAD has no body."""
    answer = await raw(served.address, CHUNKS.replace(b"POST", b"HEAD") + b"\r\nno size\r\n")
    assert answer.split()[1] == b"400"
    assert answer.endswith(b"\r\n\r\n")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_request_with_an_incomplete_body_has_no_effect(served: Served) -> None:
    """The client closes the connection in the middle of the body."""
    host, _, port = served.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(HALF_BODY)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert b" 200 " in (await raw(served.address, PROBE)).split(b"\r\n")[0]  # sent and answered after the request
    assert served.reloads == 0


async def test_a_body_that_does_not_arrive_times_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response is 408, after 10 s (shortened here)."""
    monkeypatch.setattr(http_server, "BODY_SECONDS", 0.05)
    request = b"POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc"
    assert b" 408 " in (await raw(served.address, request)).split(b"\r\n")[0]


async def test_only_the_longest_waiting_connection_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    async with (
        connections(served.address, 1) as (oldest,),
        connections(served.address, 1, HALF_BODY) as (younger,),
        connections(served.address, 1, PROBE.replace(b"Connection: close\r\n", b"")) as (newest,),
    ):
        assert b"200 OK" in await newest.read(1000)
        assert await oldest.read() == b""
        assert not younger.at_eof()


async def test_a_client_that_does_not_read_is_disconnected(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed after 10 s (shortened here), even if there are free connections."""
    monkeypatch.setattr(http_server, "UNREAD_SECONDS", 0.05)
    served.engine.last("audit").snapshot = _large_snapshot(served)  # type: ignore[method-assign]
    request = b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with connections(served.address, 1, request) as (answer,):
        assert (await answer.read(100)).startswith(b"HTTP/1.1 200")
        await eventually(lambda: not _is_established(served.address), "the daemon has closed it")


def _is_established(address: str) -> bool:
    """Whether an accepted connection is in the state ESTABLISHED. The kernel may still send data of closed ones."""
    host, port = address.split(":")
    local = f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{int(port):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(row[1] == local and row[3] == "01" for row in rows)


async def test_many_large_requests_do_not_delay_a_probe(served: Served) -> None:
    """Large responses are rendered one after the other, but /livez does not wait for them."""
    turn = asyncio.Event()

    async def slow_view(**_: bool) -> HostSnapshot:
        await turn.wait()
        return await host_view()

    host_view, served.host.view = served.host.view, slow_view  # type: ignore[method-assign]
    status = b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with connections(served.address, 30, status) as answers:
        assert (await raw(served.address, PROBE)).startswith(b"HTTP/1.1 200")
        turn.set()
        for answer in answers:
            assert (await answer.read(100)).startswith(b"HTTP/1.1 200")


async def test_connections_use_a_quarter_of_the_descriptors(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    async with connections(served.address, 17) as (oldest, *others):
        assert await oldest.read() == b""
        assert (await raw(served.address, PROBE)).startswith(b"HTTP/1.1 200")
        assert sum(one.at_eof() for one in others) < 3


async def test_two_lengths_of_one_body_are_refused(served: Served) -> None:
    """A proxy may take the following bytes for another client's request, so the connection is closed."""
    head = b"POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await raw(served.address, head + b"0\r\n\r\n" + UNREAD)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost:9464/api/v1/status", b"localhost", b"200"),
        (b"HTTP://localhost/api/v1/status?a=b", b"evil.example", b"200"),
        (b"http://evil.example/api/v1/status", b"localhost", b"403"),
        (b"http://localhost", b"localhost", b"200"),
        (b"http://localhost/nothing", b"localhost", b"404"),
    ],
)
async def test_a_target_with_a_host_is_accepted(served: Served, target: bytes, host: bytes, status: bytes) -> None:
    """Proxies send such targets. The target's host is checked, not the header."""
    request = b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
    assert (await raw(served.address, request)).startswith(b"HTTP/1.1 " + status)


async def test_history_and_configuration_can_be_queried(served: Served) -> None:
    """The history can be limited to groups and to newer points."""
    served.recorder.add_points(await served.host.view())
    document = (await served.client.get("/api/v1/history", params={"group": "mailer"})).json()
    assert (len(document["times"]), list(document["groups"])) == (1, ["mailer"])
    later = {"since": str(document["times"][-1])}
    assert (await served.client.get("/api/v1/history", params=later)).json()["times"] == []
    assert (await served.client.get("/api/v1/history", params={"since": "noon"})).status_code == 400
    shown = (await served.client.get("/api/v1/config")).json()
    assert shown["config"]["groups"]["audit"]["pull_batch_size"] == 32
    assert "pull_batch_size" not in shown["given"]["groups"]["audit"]


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("br, gzip;q=0.5", "gzip"),
        ("", None),
        ("br", None),
        ("gzip;q=0", None),
        ("gzip;q=0.0, br", None),
    ],
)
async def test_metrics_are_compressed_if_the_scraper_accepts_gzip(
    served: Served, accepted: str, encoding: str | None
) -> None:
    """`Vary` makes a caching proxy store both forms."""
    response = await served.client.get("/metrics", headers={"accept-encoding": accepted})
    assert response.headers.get("content-encoding") == encoding
    assert response.headers["vary"] == "accept-encoding"
    assert 'rmqd_group_state{engine="local",group="audit",state="running"} 1.0' in response.text


async def test_simultaneous_scrapes_share_one_rendering(served: Served) -> None:
    """Scrapes that arrive during a rendering, which may take seconds, share the next one."""
    views = 0

    async def counted_view(**_: bool) -> HostSnapshot:
        nonlocal views
        views += 1
        return await host_view()

    host_view, served.host.view = served.host.view, counted_view  # type: ignore[method-assign]
    api = HttpApi(served)
    scrapes = [Request({"type": "http", "headers": [(b"accept", accept)]}) for accept in (*[b"*/*"] * 9, b"text/plain")]
    _, second, *others = [one.body for one in await asyncio.gather(*map(api.metrics, scrapes))]
    assert b"rmqd_group_state" in second
    assert ({body is second for body in others[:-1]}, views) == ({True}, 3)
    assert (await api.metrics(scrapes[0])).body is not second
    assert views == 4


async def test_probes_and_metrics_accept_any_host(served: Served) -> None:
    """Probes use pod addresses, scrapes use service names."""
    for path in ("/livez", "/readyz", "/metrics"):
        answer = await served.client.get(path, headers={"Host": "anything.example", "Origin": "http://evil.example"})
        assert answer.status_code == 200, path


async def test_another_site_may_link_to_the_page_but_use_nothing_else(served: Served) -> None:
    """The link may be in a runbook or a dashboard. Other requests of such a site are refused."""
    link = {"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert (await served.client.get("/", headers=link | {"Sec-Fetch-Dest": "document"})).status_code == 200
    assert (await served.client.get("/", headers=link | {"Sec-Fetch-Dest": "iframe"})).status_code == 403
    assert (await served.client.get("/api/v1/status", headers=link | {"Sec-Fetch-Dest": "document"})).status_code == 403
    pause = "/api/v1/groups/mailer/pause"
    assert (await served.client.post(pause, headers=link | {"Sec-Fetch-Dest": "document"})).status_code == 403
    assert not served.engine.last("mailer").paused


async def test_single_queues_are_paused_and_resumed(served: Served) -> None:
    """The query selects the queues. The response lists the pauses afterwards."""
    pause, resume = "/api/v1/groups/mailer/pause", "/api/v1/groups/mailer/resume"
    scope: dict[str, str | int] = {"topic": "orders", "broker": "broker-a", "queue": 3}
    answer = (await served.client.post(pause, params=scope)).json()
    assert answer == {"group": "mailer", "result": "paused", "scope": scope, "queues": 0, "pauses": [scope]}
    consumer = served.engine.last("mailer")
    assert consumer.pauses.scopes == (PauseScope("orders", "broker-a", 3),)
    assert not consumer.paused
    (group, _) = (await served.client.get("/api/v1/status")).json()["groups"]
    assert (group["paused"], group["pauses"]) == (False, [scope])
    assert (await served.client.post(resume, params={"topic": "invoices"})).json()["pauses"] == [scope]
    assert (await served.client.post(resume, params={"topic": "orders"})).json()["pauses"] == []
    assert not consumer.pauses.scopes


@pytest.mark.parametrize("query", ["queue=x", "queue=-1", "queu=1", "queue=\u0663"])
async def test_an_invalid_pause_query_pauses_nothing(served: Served, query: str) -> None:
    """It must not pause the whole group."""
    answer = await served.client.post(f"/api/v1/groups/mailer/pause?{query}")
    assert answer.status_code == 400
    assert "que" in answer.json()["error"]
    assert not served.engine.last("mailer").pauses.scopes


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:{port}", "http://localhost:{port}", 200),
        ("127.0.0.1:{port}", "http://localhost:{port}", 200),
        ("localhost:8080", "http://localhost:8080", 200),  # through a forwarded port
        ("rmqd.shop.example", "https://rmqd.shop.example", 200),
        ("localhost:{port}", "http://localhost:3000", 403),
        ("localhost:{port}", "http://localhost", 403),
        ("localhost:{port}", "https://localhost", 403),
        ("localhost:{port}", "http://rmqd.shop.example:3000", 403),
        ("localhost:{port}", "http://localhost:x", 403),
        ("localhost:{port}", "chrome-extension://localhost:{port}", 403),
    ],
)
async def test_a_page_of_another_port_is_refused(served: Served, host: str, origin: str, status: int) -> None:
    """A development server on localhost may serve foreign code."""
    port = served.address.rpartition(":")[2]
    served.access = AccessPolicy("", frozenset({"rmqd.shop.example"}))
    headers = {"Host": host.format(port=port), "Origin": origin.format(port=port)}
    assert (await served.client.post("/api/v1/groups/mailer/pause", headers=headers)).status_code == status
    assert served.engine.last("mailer").paused == (status == 200)


@pytest.mark.parametrize(
    ("listen", "token", "warned"), [("0.0.0.0:0", "", 1), ("0.0.0.0:0", "secret", 0), ("127.0.0.1:0", "", 0)]
)
async def test_a_public_endpoint_without_a_token_is_reported(
    tmp_path: Path, listen: str, token: str, warned: int
) -> None:
    """Requests through a proxy on this machine cannot always be recognized."""
    path = write_config(tmp_path, "mailer")
    (tmp_path / "token").write_text(token)
    token_file = f", token_file: {tmp_path / 'token'}" if token else ""
    path.write_text(path.read_text().replace('"127.0.0.1:0"', f'"{listen}"{token_file}'))
    async with daemon_here(path) as running:
        await running.event("daemon.started")
        assert len(running.events("http.unprotected")) == warned


def test_the_limits_have_the_documented_values() -> None:
    """Other nightly tests shorten them."""
    assert http_server.MAX_CONNECTIONS == 256
    assert http_server.HEADER_SECONDS == 10
    assert http_server.MAX_HEADER_BYTES == 16 * 1024
    assert http_server.MAX_BODY_BYTES == 64 * 1024
    assert http_server.UNREAD_SECONDS == 10


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0", "0.0.0.0:0"])
def test_listen_addresses(listen: str) -> None:
    """IPv4, IPv6 and host names."""
    sock = listen_on(listen)
    with sock:
        family = socket.AF_INET6 if listen.startswith("[") else socket.AF_INET
        assert sock.family in (family, socket.AF_INET6)
        assert not address_of(sock).endswith(":0")
