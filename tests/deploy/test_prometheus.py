"""deploy/prometheus: a real Prometheus takes the files and scrapes a daemon; its rules fire when they should."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rmqd.daemon.metrics.catalogue import CATALOGUE
from tests.deploy.missing import require
from tests.deploy.prometheus_process import FOLDER, RULES, Prometheus, shortened
from tests.integration.rmqd_process import RmqdProcess
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

RUNBOOK = FOLDER.parent.parent / "docs" / "runbook.md"
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


def rules(text: str = "") -> list[dict[str, Any]]:
    """Each rule of a file; of the shipped one unless a text is given."""
    return [rule for group in yaml.safe_load(text or RULES.read_text())["groups"] for rule in group["rules"]]


def test_every_rule_asks_for_metrics_and_labels_that_rmqd_has() -> None:
    labels = {metric.name: {*metric.labels, "instance", "job"} for metric in CATALOGUE}
    for rule in rules():
        asked = {_family(name) for name in re.findall(r"\brmqd_\w+", rule["expr"])}
        assert asked <= labels.keys(), rule["alert"]
        for name, selector in re.findall(r"\b(rmqd_\w+)\{([^}]*)\}", rule["expr"]):
            assert set(re.findall(r"(\w+)\s*=", selector)) <= labels[_family(name)] | {"le"}, rule["alert"]
        grouped = {label.strip() for found in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in found.split(",")}
        assert all(grouped <= labels[name] for name in asked), rule["alert"]


def test_every_rule_has_a_test_in_which_it_fires() -> None:
    document = yaml.safe_load((FOLDER / "rmqd-alerts.test.yml").read_text())
    cases = [case for test in document["tests"] for case in test["alert_rule_test"]]

    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {rule["alert"] for rule in rules()}


def test_every_page_tells_a_person_what_it_is_about() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["labels"]["severity"] == "ticket" or "for" in rule, f"{rule['alert']} would page for one scrape"


def test_every_rule_leads_to_its_section_of_the_runbook() -> None:
    """Which has the four parts, and there is none for a rule that is gone."""
    sections = re.split(r"^## (\w+)$", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    by_name = dict(zip(sections[::2], sections[1::2], strict=True))

    assert list(by_name) == [rule["alert"] for rule in rules()]
    for rule in rules():
        name = rule["alert"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        assert re.findall(r"^\*\*([A-Za-z ]+)\.\*\*", by_name[name], re.MULTILINE) == [
            "Meaning",
            "Confirm",
            "Do",
            "Do not",
        ], name


def test_rules_are_shortened_in_all_their_times() -> None:
    """And in nothing else: tests with a real Prometheus use the very rules that are shipped."""
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
        families = {metric.name for metric in CATALOGUE}
        scraped = {name for name in prometheus.get("label/__name__/values") if name.startswith("rmqd_")}
        assert {name for name in scraped if _family(name) not in families} == set()

        evaluated = prometheus.get("rules")["groups"][0]["rules"]
        assert {rule["name"]: rule["health"] for rule in evaluated} == {rule["alert"]: "ok" for rule in rules()}
        assert prometheus.firing() == []


def _family(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
