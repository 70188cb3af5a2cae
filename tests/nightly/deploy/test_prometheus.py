"""deploy/prometheus: a real Prometheus accepts the files and scrapes a daemon; its rules fire when they should."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.daemon.metrics.exposition import METRIC_SPECS
from tests.deploy import PROMETHEUS, RULES
from tests.deploy.test_prometheus import family, rules
from tests.integration.rmqd_process import RmqdProcess
from tests.nightly.deploy.missing import require
from tests.nightly.deploy.prometheus_process import Prometheus, shortened
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until


def promtool(*arguments: str) -> None:
    command = [require("promtool", package="prometheus"), *arguments]
    done = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_prometheus_accepts_the_configuration_and_the_rules() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", RULES.name)


@pytest.mark.process
def test_the_rules_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", "rmqd-alerts.test.yml")


def test_shortened_rules_differ_only_in_their_times() -> None:
    """So tests with a real Prometheus test the shipped rules."""
    shipped, short = rules(), rules(shortened(RULES.read_text(), 30))
    durations = re.compile(r"(?<=\[)\w+(?=\])|\d+(?= # seconds)")

    by_name = {rule["alert"]: rule for rule in short}
    assert by_name["RmqdLagGrowing"]["for"] == "20000ms"
    assert "> 10 # seconds" in by_name["RmqdLagGrowing"]["expr"]
    assert "[30000ms]" in by_name["RmqdLagGrowing"]["expr"]
    assert [durations.sub("", rule["expr"]) for rule in short] == [durations.sub("", rule["expr"]) for rule in shipped]
    assert [rule.get("for", "") == "" for rule in short] == [rule.get("for", "") == "" for rule in shipped]


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
    with Prometheus(tmp_path, [daemon.http], factor=30) as prometheus:
        with Producer(rocketmq.broker.address, topic) as producer:
            for _ in range(40):
                producer.send()
        acked = f'rmqd_messages_handled_total{{group="{group}",topic="{topic}",result="acked"}}'
        wait_until(lambda: prometheus.value(acked) == 40, "Prometheus has the 40 acknowledged messages", 30)
        assert prometheus.value('up{job="rmqd"}') == 1

        (target,) = prometheus.get("targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        scraped = {name for name in prometheus.get("label/__name__/values") if name.startswith("rmqd_")}
        assert {name for name in scraped if family(name) not in METRIC_SPECS} == set()

        evaluated = prometheus.get("rules")["groups"][0]["rules"]
        assert {rule["name"]: rule["health"] for rule in evaluated} == {rule["alert"]: "ok" for rule in rules()}
        assert prometheus.firing() == []
