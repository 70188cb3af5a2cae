"""deploy/prometheus: a real Prometheus takes the files and scrapes a daemon; its rules fire when they should."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from rmqd.daemon.metrics.catalogue import CATALOGUE
from tests.deploy.missing import require
from tests.integration.rmqd_process import RmqdProcess
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.producer import Producer
from tests.rocketmq.spec import free_port
from tests.waiting import wait_until

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "prometheus"
RULES = FOLDER / "rmqd-alerts.yml"
SUFFIXES = ("_bucket", "_sum", "_count")


def promtool(*arguments: str) -> None:
    command = [require("promtool", package="prometheus"), *arguments]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", RULES.name)


@pytest.mark.process
def test_the_rules_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", "rmqd-alerts.test.yml")


def test_every_rule_asks_for_metrics_and_labels_that_rmqd_has() -> None:
    labels = {metric.name: {*metric.labels, "instance", "job"} for metric in CATALOGUE}
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        asked = set(re.findall(r"\brmqd_\w+", rule["expr"]))
        assert asked <= labels.keys(), rule["alert"]
        for name, selector in re.findall(r"\b(rmqd_\w+)\{([^}]*)\}", rule["expr"]):
            assert set(re.findall(r"(\w+)\s*=", selector)) <= labels[name], rule["alert"]
        grouped = {label.strip() for found in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in found.split(",")}
        assert all(grouped <= labels[name] for name in asked), rule["alert"]


def test_every_page_tells_a_person_what_it_is_about() -> None:
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] == "ticket" or "for" in rule, f"{rule['alert']} would page for one scrape"


class Prometheus:
    """A real one, with the shipped files, that scrapes one daemon every half second."""

    def __init__(self, folder: Path, target: str) -> None:
        self._port = free_port(set(), (0,))
        document = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
        document["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        document["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
        document["rule_files"] = [str(RULES)]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(document))
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    require("prometheus", package="prometheus"),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def get(self, path: str) -> Any:
        """The data of an answer of its API; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=5) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def value(self, query: str) -> float:
        """The sum of what a query finds; 0 for nothing."""
        data = self.get(f"query?query={quote(query)}")
        return sum(float(series["value"][1]) for series in data["result"]) if data else 0.0


@pytest.fixture
def daemon(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> Iterator[RmqdProcess]:
    settings = {
        "subscriptions": {topic: "*"},
        "consume_from_where": "first_offset",
        "handler": {"plugin": "jsonl", "options": {"path": str(tmp_path / "out.jsonl")}},
    }
    with RmqdProcess(tmp_path / "rmqd", rocketmq.nameserver, {group: settings}) as process:
        process.wait_ready()
        yield process


def test_a_real_prometheus_scrapes_a_running_daemon(
    daemon: RmqdProcess, rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    prometheus = Prometheus(tmp_path, daemon.http)
    try:
        with Producer(rocketmq.broker.address, topic) as producer:
            for _ in range(40):
                producer.send()
        acked = f'rmqd_messages_handled_total{{group="{group}",topic="{topic}",result="acked"}}'
        wait_until(lambda: prometheus.value(acked) == 40, "Prometheus has the 40 acknowledged messages", 30)
        assert prometheus.value('up{job="rmqd"}') == 1

        (target,) = prometheus.get("targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        families = {metric.name for metric in CATALOGUE}
        scraped = {name for name in prometheus.get("label/__name__/values") if name.startswith("rmqd_")}
        assert {name for name in scraped if _family(name) not in families} == set()

        rules = prometheus.get("rules")["groups"][0]["rules"]
        assert {rule["name"]: rule["health"] for rule in rules} == dict.fromkeys((r["name"] for r in rules), "ok")
        assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
    finally:
        prometheus.stop()


def _family(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
