"""deploy/prometheus: the rules use metrics of rmqd and link to the runbook."""

from __future__ import annotations

import re
from typing import Any

import yaml

from rmqd.daemon.metrics.exposition import METRIC_SPECS
from tests.deploy import PROMETHEUS, RULES

RUNBOOK = PROMETHEUS.parent.parent / "docs" / "runbook.md"
SUFFIXES = ("_bucket", "_sum", "_count")


def family(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def rules(text: str = "") -> list[dict[str, Any]]:
    """Each rule of this text, or of the shipped file."""
    return [rule for group in yaml.safe_load(text or RULES.read_text())["groups"] for rule in group["rules"]]


def test_every_rule_uses_metrics_and_labels_of_rmqd() -> None:
    labels = {name: {*spec.labels, "instance", "job"} for name, spec in METRIC_SPECS.items()}
    for rule in rules():
        asked = {family(name) for name in re.findall(r"\brmqd_\w+", rule["expr"])}
        assert asked <= labels.keys(), rule["alert"]
        for name, selector in re.findall(r"\b(rmqd_\w+)\{([^}]*)\}", rule["expr"]):
            assert set(re.findall(r"(\w+)\s*=", selector)) <= labels[family(name)] | {"le"}, rule["alert"]
        for grouped, name in re.findall(r"by \(([^)]*)\) \((?:\w+\()*(rmqd_\w+)", rule["expr"]):
            assert {label.strip() for label in grouped.split(",")} <= labels[family(name)], rule["alert"]


def test_every_rule_has_a_test_in_which_it_fires() -> None:
    document = yaml.safe_load((PROMETHEUS / "rmqd-alerts.test.yml").read_text())
    cases = [case for test in document["tests"] for case in test["alert_rule_test"]]

    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {rule["alert"] for rule in rules()}


def test_every_rule_has_annotations_and_pages_only_after_a_delay() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["labels"]["severity"] == "ticket" or "for" in rule, f"{rule['alert']} would page for one scrape"


def test_every_rule_leads_to_its_section_of_the_runbook() -> None:
    """The section has four parts. Removed rules have no section."""
    sections = re.split(r"^## (\w+)$", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    by_name = dict(zip(sections[::2], sections[1::2], strict=True))

    assert list(by_name) == [rule["alert"] for rule in rules()]
    for rule in rules():
        name = rule["alert"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        assert re.findall(r"^\*\*([A-Za-z ]+)\.?\*\*", by_name[name], re.MULTILINE) == [
            "Meaning",
            "Confirm",
            "Do",
            "Do not",
        ], name


def test_inhibit_rules_name_existing_alerts_and_labels() -> None:
    by_name = {rule["alert"]: rule for rule in rules()}
    for one in yaml.safe_load((PROMETHEUS / "alertmanager.yml").read_text())["inhibit_rules"]:
        for matchers in (one["source_matchers"], one["target_matchers"]):
            (names,) = re.findall(r'alertname=~?"([^"]*)"', " ".join(matchers))
            for name in names.split("|"):
                grouped = re.search(r"by \(([^)]*)\)", by_name[name]["expr"])
                assert grouped is not None
                assert {*one.get("equal", ())} <= {label.strip() for label in grouped[1].split(",")}, name
