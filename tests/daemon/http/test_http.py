"""The HTTP endpoint over real sockets, and its access rules. Nightly tests cover large and slow requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import httpx
import pytest

from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.health.causes import Problem
from rmqd.consumer.stats.stats_snapshot import LastError
from rmqd.daemon.group_history import HistoryRecorder
from rmqd.daemon.groups.group_engine import GroupHost, ReloadedGroups
from rmqd.daemon.groups.group_reload import ReloadReport
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor
from rmqd.daemon.http.daemon_status import DaemonInfo
from rmqd.daemon.http.http_access import AccessPolicy
from rmqd.daemon.http.http_api import HttpApi
from rmqd.daemon.http.http_endpoint import address_of, listen_on
from rmqd.daemon.http.http_server import HttpServer
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.histogram import HistogramSnapshot
from tests.config.configs import config
from tests.daemon.fakes import ABOUT, FakeEngine, queue_snapshot
from tests.waiting import eventually


@dataclass
class Served:
    """A daemon with fake groups behind a real endpoint."""

    host: GroupHost
    monitor: LoopMonitor
    engine: FakeEngine
    address: str
    client: httpx.AsyncClient
    recorder: HistoryRecorder
    config: RootConfig
    access: AccessPolicy = field(default_factory=lambda: AccessPolicy("", frozenset()))
    reloads: int = 0
    held: dict[str, str] = field(default_factory=dict)
    report: ReloadReport = field(default_factory=lambda: ReloadReport(ReloadedGroups(unchanged=("mailer",))))

    def about(self) -> DaemonInfo:
        """A fixed description of the daemon."""
        return ABOUT

    async def reload(self) -> ReloadReport:
        """Count the reload, and return the test's report."""
        self.reloads += 1
        return self.report

    async def change(self, edit: Callable[[RootConfig], RootConfig]) -> ReloadReport:
        """Change nothing."""
        return self.report

    async def restart(self, group: str) -> ReloadReport:
        """Return the test's report."""
        return self.report


class _ShortSleeps:
    """asyncio with shorter sleeps. uvicorn checks for a stop only every 0.1 s, and then waits another 0.1 s."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A running endpoint of a daemon with the groups mailer and audit."""
    monkeypatch.setattr("uvicorn.server.asyncio", _ShortSleeps())
    clock, engine = SystemClock(), FakeEngine()
    monitor = LoopMonitor(clock)
    root = config("mailer", "audit")
    host = LocalGroups(root, engine, clock, monitor)
    sock = listen_on("127.0.0.1:0")
    address = address_of(sock)
    # No TLS, so that no certificates are loaded. Closed before the server, which waits for its connections to end.
    async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False, verify=False) as client:
        daemon = Served(host, monitor, engine, address, client, HistoryRecorder(clock, host.view), root)
        server = HttpServer(HttpApi(daemon).app(), sock)
        serving, groups = asyncio.create_task(server.run()), asyncio.create_task(host.run())
        await host.started(5)
        yield daemon
    host.force_stop()
    await groups
    server.stop()
    await serving


async def test_status_lists_all_groups(served: Served) -> None:
    """Each group has the documented keys."""
    document = (await served.client.get("/api/v1/status")).json()
    assert document["version"]
    assert document["client_id"] == "DEFAULT"
    (mailer, audit) = document["groups"]
    assert {"name", "engine", "state", "paused", "client_id", "queues"} <= mailer.keys()
    assert (mailer["name"], mailer["state"], mailer["paused"]) == ("mailer", "running", False)
    assert audit["name"] == "audit"
    assert document["problems"] == []
    shown = replace(served.engine.clients[0].snapshot(), problems=("no name server answered",))
    served.engine.clients[0].snapshot = lambda: shown  # type: ignore[method-assign]
    assert (await served.client.get("/api/v1/status")).json()["problems"] == ["no name server answered"]


async def test_status_has_totals_rates_latency_errors_and_members_of_a_group(served: Served) -> None:
    """The page and `rmqd top` show these values."""
    error = LastError(1.7e9, "KeyError('city')", "orders", "A1", ("  File mailer.py, line 3", "KeyError: 'city'"))
    idle = served.engine.last("mailer").snapshot()
    (topic,) = idle.topics
    topic = replace(
        topic,
        received=12,
        handled=topic.handled | {"acked": 8, "retried": 2, "expired": 1, "dead_lettered": 1},
        exceptions={"KeyError": 2},
        errors=(replace(error, at=1.6e9), error),
        dead_letters=topic.dead_letters | {"handler": 1},
        dead_letter_reasons={"not JSON": 1},
        handler_duration=HistogramSnapshot((0.1, 1.0), (6, 4, 0), 2.0),
    )
    shown = replace(idle, topics=(topic,), queues=(queue_snapshot(0),), members=("10.0.0.1@1", "10.0.0.2@7"))
    served.engine.last("mailer").snapshot = lambda **_: shown  # type: ignore[method-assign]
    document = (await served.client.get("/api/v1/status")).json()
    assert (document["host"], document["pid"], document["uptime_seconds"]) == ("shop-1", 42, 100.0)
    group = document["groups"][0]
    assert group["totals"] == {
        "received": 12,
        "handled": 12,
        "acked": 8,
        "failed": 2,
        "retried": 2,
        "expired": 1,
        "dead_lettered": 1,
        "corrupt": 0,
        "deduplicated": 0,
    }
    assert set(group["rates"]) == {"seconds", "received", "handled", "failed", "retried", "dead_lettered"}
    assert (group["lag"], group["lag_seconds"]) == (40, 2.5)
    assert (group["latency"]["count"], group["latency"]["p50"], group["latency"]["counts"]) == (10, 5 / 60, [6, 4, 0])
    assert [one["trace"] for one in group["errors"]] == [list(error.trace)] * 2
    assert group["errors"][0]["at"] == 1.7e9
    assert group["dead_letters"]["reasons"] == [{"reason": "not JSON", "count": 1}]
    assert [(one["client_id"], one["here"]) for one in group["members"]] == [
        ("10.0.0.1@1", True),
        ("10.0.0.2@7", False),
    ]


async def test_readiness_names_the_group_that_is_not_ready(served: Served) -> None:
    """The status is 503, with a line for each check."""
    engine_consumer = served.engine.last("audit")
    engine_consumer.fail(ValueError("boom"))
    await eventually(lambda: served.engine.last("audit").ended, "the group fails")
    answer = await served.client.get("/readyz")
    assert answer.status_code == 503
    assert "[+] group mailer: ok" in answer.text
    assert "[-] group audit: ValueError: boom" in answer.text


NAMES: list[tuple[dict[str, str], int]] = [
    ({"Host": "localhost"}, 200),
    ({"Host": "LOCALHOST:9464"}, 200),
    ({"Host": "127.0.0.1:1"}, 200),
    ({"Host": "[::1]:9464"}, 200),
    ({"Host": "rmqd.shop.example:9464"}, 200),
    ({"Host": "evil.example"}, 403),
    ({"Host": "localhost.evil.example"}, 403),
    ({"Host": "evil.example@localhost"}, 403),
    ({"Host": "["}, 403),
    ({"Host": "localhost", "Origin": "http://localhost:9464"}, 200),
    ({"Host": "localhost", "Origin": "http://evil.example"}, 403),
    ({"Host": "localhost", "Origin": "null"}, 403),
    ({"Host": "localhost", "Sec-Fetch-Site": "same-origin"}, 200),
    ({"Host": "localhost", "Sec-Fetch-Site": "none"}, 200),
    ({"Host": "localhost", "Sec-Fetch-Site": "cross-site"}, 403),
]


@pytest.mark.parametrize(
    "path", ["/", "/live", "/static/page.js", "/api/v1/status", "/api/v1/history", "/api/v1/config"]
)
async def test_page_and_api_refuse_unknown_host_names_and_foreign_origins(served: Served, path: str) -> None:
    """A website must not read them through a host name that it points to this machine."""
    served.access = AccessPolicy("", frozenset({"rmqd.shop.example"}))
    for headers, status in NAMES:
        assert (await served.client.get(path, headers=headers)).status_code == status, headers


async def test_pause_and_resume(served: Served) -> None:
    """No token is needed from this machine."""
    answer = (await served.client.post("/api/v1/groups/mailer/pause")).json()
    assert (answer["group"], answer["result"]) == ("mailer", "paused")
    assert served.engine.last("mailer").paused
    assert (await served.client.get("/api/v1/status")).json()["groups"][0]["paused"]
    assert (await served.client.post("/api/v1/groups/mailer/resume")).status_code == 200
    assert not served.engine.last("mailer").paused


async def test_a_single_queue_of_a_group_that_pops_cannot_be_paused(served: Served) -> None:
    """A pop may return messages of any queue. They would wait here, and each pop would cost them an attempt."""
    served.config = config("mailer", changes={"mailer": {"consume_mode": "pop"}})
    answer = await served.client.post("/api/v1/groups/mailer/pause?topic=orders&queue=1")
    assert (answer.status_code, served.engine.last("mailer").pauses.scopes) == (400, ())
    assert "topic orders, queue 1 alone cannot be paused; pause the topic" in answer.json()["error"]
    for change, params in (("pause", "topic=orders"), ("resume", "topic=orders&queue=1")):
        assert (await served.client.post(f"/api/v1/groups/mailer/{change}?{params}")).status_code == 200


async def test_an_unknown_group_is_not_found(served: Served) -> None:
    """The error lists the known groups."""
    answer = await served.client.post("/api/v1/groups/shipping/pause")
    assert answer.status_code == 404
    assert "expected one of mailer, audit" in answer.json()["error"]


@pytest.mark.parametrize("path", ["groups/mailer/pause", "groups/mailer/restart", "groups/mailer/canary", "reload"])
async def test_changes_require_post(served: Served, path: str) -> None:
    """A link or an image must not change anything."""
    answer = await served.client.get(f"/api/v1/{path}")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json() == {"error": "Method Not Allowed"}


async def test_an_unknown_path_is_an_error_in_json(served: Served) -> None:
    """A client that was written for a later version reads the error as any other."""
    answer = await served.client.get("/api/v1/stat")
    assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        ("Bearer wrong", 401),
        ("Basic secret", 401),
        ("Bearer", 401),
        ("Bearer secret", 200),
        ("bearer secret", 200),
    ],
)
async def test_changes_require_the_configured_token(served: Served, authorization: str | None, status: int) -> None:
    """This includes requests from this machine. Reading needs no token."""
    served.access = AccessPolicy("secret", frozenset())
    headers = {"Authorization": authorization} if authorization else {}
    answer = await served.client.post("/api/v1/groups/mailer/pause", headers=headers)
    assert answer.status_code == status
    assert served.engine.last("mailer").paused == (status == 200)
    assert (await served.client.get("/api/v1/status")).status_code == 200


async def test_a_foreign_origin_changes_nothing_even_from_this_machine(served: Served) -> None:
    """A browser's form post would come from loopback."""
    answer = await served.client.post("/api/v1/reload", headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("client", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.0.0.6", False),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.7", False),
        ("", False),
    ],
)
def test_without_a_token_only_this_machine_may_change_something(client: str, allowed: bool) -> None:
    """The endpoint may listen on all addresses."""
    refusal = AccessPolicy("", frozenset()).check_change(None, client)
    assert (refusal is None) == allowed


async def test_reload_returns_its_report(served: Served) -> None:
    """A refused reload returns 500 and every problem."""
    answer = await served.client.post("/api/v1/reload")
    assert answer.status_code == 200
    assert answer.json()["unchanged"] == ["mailer"]
    served.report = ReloadReport(problems=("rmqd.yaml:3:1: nameserver: missing", "second"))
    answer = await served.client.post("/api/v1/reload")
    assert answer.status_code == 500
    assert answer.json()["problems"] == ["rmqd.yaml:3:1: nameserver: missing", "second"]


async def test_the_page_shows_the_groups_and_allows_only_its_own_scripts(served: Served) -> None:
    """Text is escaped. The policy allows only the page's own files, and no other file is served."""
    served.engine.last("audit").snapshot = _failing_snapshot(served)  # type: ignore[method-assign]
    answer = await served.client.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "mailer" in answer.text
    assert "<script>alert(1)" not in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    files = re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text)
    assert {file.split("?")[0] for file in files} == {"/static/icon.svg", "/static/page.css", "/static/page.js"}
    for file in files:
        assert (await served.client.get(file)).status_code == 200
    for other in ("/static/render.py", "/static/..%2frender.py", "/static/%2e%2e/render.py", "/static/"):
        assert (await served.client.get(other)).status_code == 404


async def test_status_metrics_and_page_show_stalls_and_problems_with_causes(served: Served) -> None:
    """One queue is stalled, and the group has one problem."""
    stall = Problem("no_permission", "the topic may not be <read>", "let it be read")
    problem = Problem("subscription_mismatch", "others subscribe to more", "make them equal")
    queues = (replace(queue_snapshot(0, state="stuck"), stall=stall), replace(queue_snapshot(1), is_retry=True))
    shown = replace(served.engine.last("audit").snapshot(), queues=queues, problems=(problem,))
    served.engine.last("audit").snapshot = lambda **_: shown  # type: ignore[method-assign]
    (_, group) = (await served.client.get("/api/v1/status")).json()["groups"]
    assert group["problems"] == [asdict(problem)]
    assert [queue["stall"] for queue in group["queues"]] == [asdict(stall), None]
    metrics = (await served.client.get("/metrics")).text
    assert 'rmqd_stalled_queues{cause="no_permission",engine="local",group="audit"} 1.0' in metrics
    assert 'rmqd_stalled_queues{cause="paused",engine="local",group="audit"} 0.0' in metrics
    assert 'rmqd_group_problems{cause="subscription_mismatch",engine="local",group="audit"} 1.0' in metrics
    page = (await served.client.get("/")).text
    for part in ("the topic may not be &lt;read&gt;", "orders@broker-a:0", "let it be read", "retry topic"):
        assert part in page
    assert "others subscribe to more" in page
    assert "make them equal" in page


def _failing_snapshot(served: Served) -> Any:
    shown = replace(served.engine.last("audit").snapshot(), failure="<script>alert(1)</script>")
    return lambda **_: shown
