"""A dead broker with twenty groups: a real daemon, Prometheus and Alertmanager send one page."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import PROMETHEUS
from tests.integration.rmqd_process import RmqdProcess
from tests.nightly.deploy.missing import require
from tests.nightly.deploy.prometheus_process import Prometheus, divided
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.producer import Producer
from tests.rocketmq.release import EMBEDDED
from tests.rocketmq.spec import ClusterSpec, free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

FACTOR = 10
GROUPS = [f"group-{number}" for number in range(20)]


@contextmanager
def notified() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a web server, and the notifications that it receives."""
    got: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()


@contextmanager
def alertmanager(folder: Path, webhook: str) -> Iterator[str]:
    """Run Alertmanager with the shipped configuration, shortened times, and both receivers at the webhook."""
    folder.mkdir()
    document = yaml.safe_load((PROMETHEUS / "alertmanager.yml").read_text())
    for name in ("group_wait", "group_interval"):
        document["route"][name] = divided(document["route"][name], FACTOR)
    for receiver in document["receivers"]:
        receiver["webhook_configs"] = [{"url": f"{webhook}/{receiver['name']}"}]
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(document))
    address = f"127.0.0.1:{free_port(set(), (0,))}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                require("prometheus-alertmanager", package="prometheus-alertmanager"),
                f"--config.file={folder / 'alertmanager.yml'}",
                f"--storage.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=log,
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        return asked(address, "/-/ready") is not None

    try:
        wait_until(answers, "Alertmanager answers", 60)
        yield address
    finally:
        process.kill()
        process.wait()


def asked(address: str, path: str) -> bytes | None:
    """Alertmanager's response; None without a response."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            return bytes(answer.read())
    except OSError:
        return None


def test_a_dead_broker_of_twenty_groups_pages_once(tmp_path: Path) -> None:
    """The broker stays dead until every group's queues are stuck."""
    groups = {
        name: {
            "subscriptions": {"orders": "*"},
            "consume_from_where": "first_offset",
            "handler": {"plugin": "log"},
        }
        for name in GROUPS
    }
    with RealCluster.start(ClusterSpec(version=EMBEDDED)) as cluster, notified() as (webhook, got):
        cluster.create_topic("orders", 2)
        with (
            alertmanager(tmp_path / "alertmanager", webhook) as address,
            RmqdProcess(tmp_path / "rmqd", cluster.nameserver, groups) as daemon,
            Prometheus(tmp_path / "prometheus", [daemon.http], FACTOR, alertmanager=address) as prometheus,
        ):
            daemon.wait_ready()
            with Producer(cluster.broker.address, "orders") as producer:
                producer.send()
            wait_until(
                lambda: prometheus.value("rmqd_messages_handled_total") == len(GROUPS), "all have handled it", 60
            )
            cluster.kill("broker")

            def are_all_stuck() -> bool:
                stuck = {one["group"] for one in prometheus.firing() if one["alertname"] == "RmqdQueueStuck"}
                return stuck == set(GROUPS)

            wait_until(are_all_stuck, "the queues of every group are stuck", 300)

            def are_all_dropped() -> bool:
                alerts = json.loads(asked(address, "/api/v2/alerts") or b"[]")
                stuck = [one for one in alerts if one["labels"]["alertname"] == "RmqdQueueStuck"]
                return len(stuck) == len(GROUPS) and all(one["status"]["inhibitedBy"] for one in stuck)

            wait_until(are_all_dropped, "Alertmanager drops what follows from the dead broker", 60)
            wait_until(lambda: any(one["receiver"] == "pager" for one in got), "there is a page", 60)
    pages = [alert["labels"] for one in got if one["receiver"] == "pager" for alert in one["alerts"]]
    assert [(page["alertname"], page.get("broker")) for page in pages] == [
        ("RmqdBrokerUnreachable", cluster.broker.name)
    ]
